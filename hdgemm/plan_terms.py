"""What every plan says, by the same names in Python, in JSON and in text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hdgemm.tables import Table
from hdgemm.units import format_duration, format_size, format_speed

if TYPE_CHECKING:
    from collections.abc import Mapping


class PartTerms(Protocol):
    """Memory, bytes, operations and expectations of a part of a computation."""

    @property
    def host_bytes(self) -> int:
        """Host memory held at once, by the process that holds most of it."""

    @property
    def planned_bytes(self) -> Mapping[Any, int]:
        """Bytes that each stage moves: "load1" reads storage, "store2" writes it."""

    @property
    def flops(self) -> int:
        """Floating-point operations."""

    @property
    def expected_seconds(self) -> float | None:
        """Expected duration; None where it is not known before the run."""

    @property
    def expected_phase_seconds(self) -> Mapping[str, float]:
        """Expected seconds of each phase, alone; {} where they are not known."""

    @property
    def expected_limit(self) -> str | None:
        """What takes longest, such as ``"kernel"`` or ``"disk"``; None where it is not known."""


class PlanTerms(PartTerms, Protocol):
    """Memory, bytes, operations and expectations of a computation.

    Plans of products, of linear algebra, of clusters and of MPI have them as attributes, and as
    members of the same names in `to_dict()` and in their JSON text.
    """

    @property
    def host_limit(self) -> int:
        """The memory that the plan was made for, of one process, in bytes."""


def terms(plan: PlanTerms) -> dict[str, Any]:
    """Return what every plan says as plain values, ready for JSON."""
    return {"host_limit": plan.host_limit} | part_terms(plan)


def part_terms(plan: PartTerms) -> dict[str, Any]:
    """Return what the plan of a part says as plain values, ready for JSON."""
    moved = {stage: int(count) for stage, count in plan.planned_bytes.items()}
    return {
        "host_bytes": plan.host_bytes,
        "planned_bytes": moved,
        "read_bytes": moved.get("load1", 0),
        "write_bytes": moved.get("store2", 0),
        "flops": plan.flops,
        "expected_seconds": plan.expected_seconds,
        "expected_phase_seconds": dict(plan.expected_phase_seconds),
        "expected_limit": plan.expected_limit,
    }


def moved_line(plan: PartTerms) -> str:
    """Return a line with the bytes that are read from storage and written to it."""
    moved = plan.planned_bytes
    read, written = (format_size(moved.get(stage, 0)) for stage in ("load1", "store2"))
    return f"bytes read {read}, written {written}"


def memory_line(plan: PlanTerms) -> str:
    """Return a line with the memory held, and its limit."""
    return f"memory held {format_size(plan.host_bytes)} of {format_size(plan.host_limit)}"


def phase_lines(plan: PartTerms) -> list[str]:
    """Return a table of the seconds of each phase."""
    expected = plan.expected_phase_seconds.items()
    took = [(name, format_duration(seconds)) for name, seconds in expected if seconds]
    return Table(("phase", "expected"), took).lines()


def expected_line(plan: PartTerms) -> str:
    """Return a line with the duration, the speed and what limits it."""
    seconds = plan.expected_seconds
    if seconds is None:
        return "expected: not known before the run"
    speed = format_speed(plan.flops / seconds / 1e9 if seconds > 0 else 0.0)
    limit = f", limited by {plan.expected_limit}" if plan.expected_limit else ""
    return f"expected: {format_duration(seconds)}, {speed}{limit}"
