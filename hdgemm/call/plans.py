"""Plans of computations of several parts, which run one after the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol

from hdgemm.machine.limits import host_bytes
from hdgemm.plan_terms import (
    PartTerms,
    PlanTerms,
    expected_line,
    memory_line,
    moved_line,
    part_terms,
)
from hdgemm.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hdgemm.options import Options
    from hdgemm.pipeline.plan import Stage

#: Line breaks in the plans of the parts that are printed.
_MOST_LINES: Final = 19


class Planned(Protocol):
    """The plan of a computation, as its report needs it."""

    @property
    def planned_bytes(self) -> Mapping[Stage, int]:
        """Bytes that each stage moves."""

    def summary(self) -> dict[str, Any]:
        """Return shape, memory and expectations as plain values."""


class Part(PartTerms, Protocol):
    """The plan of one part of a computation; it prints as text."""

    def summary(self) -> dict[str, Any]:
        """Return shape, memory and expectations as plain values."""


@dataclass(frozen=True, slots=True)
class RepeatedPart:
    """A run of equal parts: one plan and the number of times that it is executed.

    Parameters
    ----------
    each
        The plan of each part.
    count
        At least 1.
    """

    each: Part
    count: int

    @property
    def planned_bytes(self) -> Mapping[Stage, int]:
        """Bytes that each stage moves in all parts."""
        return {stage: self.count * nbytes for stage, nbytes in self.each.planned_bytes.items()}

    @property
    def host_bytes(self) -> int:
        """Host memory of one part: they run one after the other."""
        return self.each.host_bytes

    @property
    def flops(self) -> int:
        """Floating-point operations of all parts."""
        return self.count * self.each.flops

    @property
    def expected_seconds(self) -> float | None:
        """Expected duration of all parts; None where one part's is not known."""
        seconds = self.each.expected_seconds
        return None if seconds is None else self.count * seconds

    @property
    def expected_phase_seconds(self) -> Mapping[str, float]:
        """Expected seconds of each phase of all parts."""
        expected = self.each.expected_phase_seconds.items()
        return {phase: self.count * seconds for phase, seconds in expected}

    @property
    def expected_limit(self) -> str | None:
        """What limits each part."""
        return self.each.expected_limit

    def summary(self) -> dict[str, Any]:
        """Return the plan of each part, their number, and bytes and expectations of all."""
        each = self.each.summary()
        return each if self.count == 1 else {"count": self.count, "each": each, **part_terms(self)}

    def __str__(self) -> str:
        return str(self.each) if self.count == 1 else f"{self.count} times:\n{self.each}"


class LinearPlan(PlanTerms, Protocol):
    """The plan of one call of linear algebra."""

    def summary(self) -> dict[str, Any]:
        """Return shape, memory and expectations as plain values, for reports."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""


@dataclass(frozen=True, slots=True)
class JointPlan:
    """The plans of the parts of a computation.

    Parameters
    ----------
    facts
        Kind, shape, dtype and memory limit of the whole, as its report has them; a ``"note"`` is
        the last line of the text, ``"held_bytes"`` is host memory held beside every part.
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
    def host_bytes(self) -> int:
        """Host memory of the part that takes most, and what is held beside it."""
        held: int = self.facts.get("held_bytes", 0)
        return held + max((part.host_bytes for part in self.parts), default=0)

    @property
    def host_limit(self) -> int:
        """The memory that the plan was made for, in bytes."""
        limit: int = self.facts["host_limit"]
        return limit

    @property
    def flops(self) -> int:
        """Floating-point operations of all parts."""
        return sum(part.flops for part in self.parts)

    @property
    def runs(self) -> list[RepeatedPart]:
        """The parts, equal ones in succession as one run."""
        counted = (
            (part.each, part.count) if isinstance(part, RepeatedPart) else (part, 1)
            for part in self.parts
        )
        return [
            RepeatedPart(each, sum(count for _, count in run))
            for each, run in groupby(counted, key=lambda pair: pair[0])
        ]

    @property
    def expected_seconds(self) -> float | None:
        """Expected duration; None where a part has none."""
        seconds = [run.expected_seconds for run in self.runs]
        return None if None in seconds else sum(filter(None, seconds))

    @property
    def expected_phase_seconds(self) -> Mapping[str, float]:
        """Expected seconds of each phase of all parts."""
        expected: Counter[str] = Counter()
        for run in self.runs:
            expected.update(run.expected_phase_seconds)
        return dict(expected)

    @property
    def expected_limit(self) -> str | None:
        """What limits the parts that take longest."""
        slowest = max(self.runs, key=lambda run: run.expected_seconds or 0.0, default=None)
        return None if slowest is None else slowest.expected_limit

    def summary(self) -> dict[str, Any]:
        """Return the plan of the report: facts, memory, expectations and the plan of each part."""
        return joint_summary(self.facts, [part.summary() for part in self.parts])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.summary()

    def __str__(self) -> str:
        shown = [str(run) for run in self.runs]
        while len(shown) > 1 and "\n\n".join(shown).count("\n") > _MOST_LINES:
            shown.pop()
        if left := len(self.runs) - len(shown):
            shown.append(f"and {format_count(left, 'more part')} (--json, to_dict() have them all)")
        whole = [f"in all: {moved_line(self)}", memory_line(self), expected_line(self)]
        whole += [str(self.facts["note"])] if "note" in self.facts else []
        return "\n\n".join([*shown, "\n".join(whole)])


def facts_of(kind: str, shape: tuple[int, int], dtype: str, options: Options) -> dict[str, Any]:
    """Return kind, shape, dtype and memory limit of a computation as plain values, for reports."""
    m, n = shape
    return {"kind": kind, "m": m, "n": n, "dtype": dtype, "host_limit": host_bytes(options)}


@dataclass(frozen=True, slots=True)
class _PlainPart:
    """The plan of a part as its report has it: plain values, some of which it may lack."""

    values: Mapping[str, Any]

    @property
    def planned_bytes(self) -> Mapping[Stage, int]:
        return self.values.get("planned_bytes") or {}

    @property
    def host_bytes(self) -> int:
        return self.values.get("host_bytes") or 0

    @property
    def flops(self) -> int:
        return self.values.get("flops") or 0

    @property
    def expected_seconds(self) -> float | None:
        seconds: float | None = self.values.get("expected_seconds", 0.0)
        return seconds

    @property
    def expected_phase_seconds(self) -> Mapping[str, float]:
        return self.values.get("expected_phase_seconds") or {}

    @property
    def expected_limit(self) -> str | None:
        return self.values.get("expected_limit")

    def summary(self) -> dict[str, Any]:
        return dict(self.values)


def joint_summary(facts: Mapping[str, Any], plans: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add to the facts of a computation what the plans of its parts hold and expect, and them.

    Equal plans in succession become one, with their number.
    """
    parts = (
        RepeatedPart(_PlainPart(plan.get("each", plan)), plan.get("count", 1)) for plan in plans
    )
    joint = JointPlan(facts, tuple(parts))
    return {**facts, **part_terms(joint), "parts": [run.summary() for run in joint.runs]}
