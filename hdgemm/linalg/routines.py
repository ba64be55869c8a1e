"""Routines by their descriptions, from file to file: for the command line and the service."""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.call.operands import open_columns
from hdgemm.errors import InputError
from hdgemm.linalg.preflight import prepared
from hdgemm.machine.limits import memory_limit
from hdgemm.matrices.location import items_beside, parse_location
from hdgemm.matrices.stores import create_matrix
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import check_location
from hdgemm.routines.description import load
from hdgemm.routines.registry import commands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hdgemm.call.keywords import Call
    from hdgemm.call.plans import LinearPlan
    from hdgemm.report import Report
    from hdgemm.routines.description import Output, Routine


def run_routine(
    routine: Routine,
    operands: Mapping[str, Any],
    outs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    call: Call,
) -> Report:
    """Execute a routine, and return its report with the values that it returns and its warnings.

    Parameters
    ----------
    operands, outs
        Locations by name of operand and output; an output without one is not stored.
    parameters
        The routine's own keywords.

    Raises
    ------
    InputError
        For arguments that do not fit together, and a checkpoint that the routine does not have.
    """
    if (call.checkpoint or call.restart) and not routine.durable:
        durable = ", ".join(name for name, each in commands().items() if each.durable)
        raise InputError(f"{routine.name} has no checkpoint; {durable} have one")
    reports: list[Report] = []
    keywords = {**routine.own(parameters), **call.keywords(durable=routine.durable)}
    keywords["report"] = reports.append
    if routine.stores:
        keywords["out"] = _out(routine, outs, parameters)
    with _noted_warnings() as noted:
        found = load(routine.function)(
            *routine.leading, *(operands[each.name] for each in routine.operands), **keywords
        )
    values = {each.name: _plain(each.value(found)) for each in routine.present(parameters, "value")}
    return replace(reports[-1], values=values, warnings=tuple(noted))


@contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """Yield a list that receives the messages of the warnings shown within the block."""
    noted: list[str] = []
    show = warnings.showwarning

    def note(message: Warning | str, *rest: Any, **named: Any) -> None:
        noted.append(str(message))
        show(message, *rest, **named)

    warnings.showwarning = note
    try:
        yield noted
    finally:
        warnings.showwarning = show


def plan_routine(
    routine: Routine,
    operands: Mapping[str, Any],
    outs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    call: Call,
) -> LinearPlan:
    """Return the plan that `run_routine` executes; locations are checked as for a run."""
    matrices = [operands[each.name] for each in routine.operands]
    out = _out(routine, outs, parameters)
    own = routine.own(parameters)
    with memory_limit(), prepared(routine, matrices, out, call, own) as found:
        # After the plan, which refuses parameters such as a k from which no file could be made.
        _check_outs(routine, matrices, outs, parameters, durable=call.checkpoint is not False)
        return found.plan


def _out(routine: Routine, outs: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
    """Return `out` as the function takes it: one location, or one for each matrix."""
    matrices = routine.present(parameters, "matrix")
    if missing := [x.name for x in matrices if not x.optional and outs and x.name not in outs]:
        names, options = " and ".join(missing), " and ".join(f"--{name}" for name in missing)
        raise InputError(f"{routine.name} also stores {names}: give {options}")
    places = [outs.get(each.name) for each in matrices]
    return tuple(places) if len(places) > 1 else next(iter(places), None)


def _check_outs(
    routine: Routine,
    operands: list[Any],
    outs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    durable: bool,
) -> None:
    """Refuse locations that the run refuses: a file without a name is begun there and discarded.

    A store is looked at only: to begin a matrix would change it.
    """
    opened = []
    for x in operands:
        with open_columns(x)[0] as matrix:
            opened.append(matrix)
    shapes = {x.name: y.shape for x, y in zip(routine.operands, opened, strict=True)}
    dtype = result_dtype(*(matrix.dtype for matrix in opened))
    for output in routine.present(parameters, "matrix"):
        if outs.get(output.name) is None:
            continue
        place = parse_location(outs[output.name])
        check_location(place, operands[0], operands[-1])
        if not place.kind.whole_file:
            beside = items_beside(place, map(parse_location, filter(None, outs.values())))
            place.kind.check_new(place, durable=durable, beside=beside)
            continue
        shape = output.shape(routine.extents(shapes, parameters), parameters)
        with create_matrix(place, _two(shape), _dtype_of(output, dtype), sparse=True):
            pass


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, *columns = shape
    return rows, columns[0] if columns else 1


def _dtype_of(output: Output, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if output.dtype == "result":
        return dtype
    return np.empty(0, dtype).real.dtype if output.dtype == "real" else np.dtype(output.dtype)


def _plain(value: Any) -> Any:
    """Return numbers and arrays as JSON holds them; NaN and infinities as texts such as "-inf"."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
