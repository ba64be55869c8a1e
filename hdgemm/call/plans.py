"""Plans of computations of several parts, which run one after the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from hdgemm.machine.limits import host_bytes
from hdgemm.pipeline.plan import planned_bytes, summarize_all
from hdgemm.tables import Table
from hdgemm.units import format_count, format_duration, format_size, format_speed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Plans, Stage

#: Line breaks in the plans of the parts that are printed.
_MOST_LINES: Final = 19


class Planned(Protocol):
    """The plan of a computation, as its report needs it."""

    @property
    def planned_bytes(self) -> Mapping[Stage, int]:
        """Bytes that each stage moves."""

    def summary(self) -> dict[str, Any]:
        """Return shape, memory and expectations as plain values."""


class Part(Planned, Protocol):
    """The plan of one part of a computation; it prints as text."""

    @property
    def bytes_held(self) -> int:
        """Host memory that it takes."""


class LinearPlan(Part, Protocol):
    """The plan of one call of linear algebra."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""


@dataclass(frozen=True, slots=True)
class ProductPart:
    """The plans of a product that is a part, one for each device."""

    plans: Plans

    @property
    def planned_bytes(self) -> Mapping[Stage, int]:
        """Bytes that each stage moves; several devices draw their tiles while they run."""
        return planned_bytes(self.plans[0])

    @property
    def bytes_held(self) -> int:
        """Host memory that it takes."""
        return sum(plan.host_bytes for plan in self.plans)

    def summary(self) -> dict[str, Any]:
        """Return shape, tiles and memory as plain values."""
        return summarize_all(self.plans)

    def __str__(self) -> str:
        return str(self.plans)


@dataclass(frozen=True, slots=True)
class JointPlan:
    """The plans of the parts of a computation.

    Parameters
    ----------
    facts
        Kind, shape, dtype and memory limit of the whole, as its report has them.
    parts
        In the order in which they run.
    """

    facts: Mapping[str, Any]
    parts: tuple[Part, ...]

    @property
    def planned_bytes(self) -> dict[Stage, int]:
        """Bytes that each stage moves."""
        found: Counter[Stage] = Counter()
        for part in self.parts:
            found.update(part.planned_bytes)
        return dict(found)

    @property
    def bytes_held(self) -> int:
        """Host memory of the part that takes most."""
        return max((part.bytes_held for part in self.parts), default=0)

    def summary(self) -> dict[str, Any]:
        """Return the plan of the report: facts, memory, expectations and the plan of each part."""
        return joint_summary(self.facts, [part.summary() for part in self.parts])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        moved = self.planned_bytes
        return self.summary() | {
            "bytes_held": self.bytes_held,
            "read_bytes": moved.get("load1", 0),
            "write_bytes": moved.get("store2", 0),
        }

    def __str__(self) -> str:
        whole = self.to_dict()
        seconds, held = format_duration(whole["expected_seconds"]), format_size(self.bytes_held)
        read, written = format_size(whole["read_bytes"]), format_size(whole["write_bytes"])
        total = f"in all: bytes read {read}, written {written}"
        # A product on several devices has no expected time.
        known = all(part.get("expected_seconds") is not None for part in whole["parts"])
        expected = f", expected: {seconds}" if known else ""
        shown = [str(part) for part in self.parts]
        while len(shown) > 1 and "\n\n".join(shown).count("\n") > _MOST_LINES:
            shown.pop()
        if left := len(self.parts) - len(shown):
            shown.append(f"and {format_count(left, 'more part')} (--json, to_dict() have them all)")
        return "\n\n".join([*shown, f"{total}\nmemory held {held}{expected}"])


def facts_of(kind: str, shape: tuple[int, int], dtype: str, options: Options) -> dict[str, Any]:
    """Return kind, shape, dtype and memory limit of a computation as plain values, for reports."""
    m, n = shape
    return {"kind": kind, "m": m, "n": n, "dtype": dtype, "host_limit": host_bytes(options)}


def joint_summary(facts: Mapping[str, Any], plans: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add to the facts of a computation what the plans of its parts hold and expect, and them."""
    plans = [dict(plan) for plan in plans]
    expected: Counter[str] = Counter()
    for plan in plans:
        expected.update(plan.get("expected_phase_seconds") or {})
    return {
        **facts,
        "host_bytes": max((plan.get("host_bytes") or 0 for plan in plans), default=0),
        "expected_seconds": sum(plan.get("expected_seconds") or 0.0 for plan in plans),
        "expected_phase_seconds": dict(expected),
        "parts": plans,
    }


def phase_lines(expected: Mapping[str, float]) -> list[str]:
    """Return a table of the seconds of each phase."""
    took = [(name, format_duration(seconds)) for name, seconds in expected.items() if seconds]
    return Table(("phase", "expected"), took).lines()


def expected_line(flops: int, seconds: float, limit: str) -> str:
    """Return a line with the duration, the speed and what limits it."""
    speed = format_speed(flops / seconds / 1e9 if seconds > 0 else 0.0)
    return f"expected: {format_duration(seconds)}, {speed}, limited by the {limit}"
