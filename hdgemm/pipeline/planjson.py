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

#: What stood for "no bound" in plans until November 2026.
_UNBOUNDED: Final = 1 << 62

_SLOTS: Final = ("a_slots", "b_slots", "c_slots", "up", "down")


def to_json(plan: Plan, *, indent: int | None = None) -> str:
    """Write a plan as JSON, from which `from_json` makes an equal plan."""
    return json.dumps({"format": FORMAT, **asdict(plan)}, indent=indent)


def from_json(text: str) -> Plan:
    """Read a plan that `to_json` wrote; `validate` checks whether it can be run.

    Raises
    ------
    InputError
        When the text is not a plan, or has another format.
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
    expected = fields.pop("expected")
    if "direct" in fields:  # the name of `in_place` until November 2026
        fields["in_place"] = fields.pop("direct")
    if fields["device_limit"] >= _UNBOUNDED:
        fields["device_limit"] = fields["host_limit"]
    fields |= {name: Slots(**fields[name]) for name in _SLOTS}
    return Plan(
        **fields
        | {
            "problem": _problem(fields["problem"]),
            "device": _device(fields["device"]),
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


def _problem(fields: dict[str, Any]) -> Problem:
    return Problem(**fields | {name: _spec(fields[name]) for name in ("a", "b", "c")})


def _spec(fields: dict[str, Any]) -> OperandSpec:
    pairs = {name: tuple(fields[name]) for name in ("chunk", "chunk_origin") if fields.get(name)}
    return OperandSpec(**fields | pairs)


def _device(fields: dict[str, Any]) -> DeviceSpec:
    bounds = {
        name: None if (fields.get(name) or 0) >= _UNBOUNDED else fields.get(name)
        for name in ("memory_bytes", "max_buffer_bytes")
    }
    return DeviceSpec(**fields | bounds | {"granularity": tuple(fields["granularity"])})
