"""Plans as JSON text, for journals and for display."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import (
    DeviceSpec,
    Expectation,
    Load,
    OperandSpec,
    Overlap,
    Plan,
    Problem,
    Rect,
    Slots,
    Step,
    WorkUnit,
)

#: Incremented when a reader of the previous format would misread this one.
FORMAT: Final = 1

_SLOTS: Final = ("a_slots", "b_slots", "c_slots", "up", "down")


def to_json(plan: Plan, *, indent: int | None = None) -> str:
    """Write a plan as JSON, from which `from_json` makes an equal plan."""
    return json.dumps({"format": FORMAT, **asdict(plan)}, indent=indent)


def from_json(text: str) -> Plan:
    """Read a plan that `to_json` wrote; `validate` checks whether it can be run.

    Raises `InputError` where the text is not a plan, or has another format.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        written = fields.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise InputError("the text is not a plan in JSON") from error
    if written != FORMAT:
        raise InputError(f"the plan has format {written}, this version reads format {FORMAT}")
    try:
        return _plan(fields)
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"the plan's fields are not what format {FORMAT} has: {error}") from error


def _plan(fields: dict[str, Any]) -> Plan:
    expected, problem = fields.pop("expected"), fields["problem"]
    granularity = fields["device"]["granularity"]
    fields |= {name: Slots(**fields[name]) for name in _SLOTS}
    return Plan(
        **fields
        | {
            "problem": Problem(
                **problem | {name: _spec(problem[name]) for name in ("a", "b", "c")}
            ),
            "device": DeviceSpec(**fields["device"] | {"granularity": tuple(granularity)}),
            "overlap": Overlap(**fields["overlap"]),
            "tile": tuple(fields["tile"]),
            "loads": tuple(
                Load(x, Rect(*rect), slot, step) for x, rect, slot, step in fields["loads"]
            ),
            "units": tuple(
                WorkUnit(number, bar, Rect(*rect), *rest)
                for number, bar, rect, *rest in fields["units"]
            ),
            "steps": tuple(Step(*step) for step in fields["steps"]),
            "done": tuple(Rect(*rect) for rect in fields["done"]),
            "expected": None if expected is None else Expectation(**expected),
        }
    )


def _spec(fields: dict[str, Any]) -> OperandSpec:
    pairs = {name: tuple(fields[name]) for name in ("chunk", "chunk_origin") if fields.get(name)}
    return OperandSpec(**fields | pairs)
