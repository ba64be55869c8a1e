"""Factorisations and solves by name, from file to file: for the command line and the service."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hdgemm.blas.rank_update import syrk
from hdgemm.call.operands import open_columns
from hdgemm.errors import InputError
from hdgemm.linalg.cholesky import cholesky
from hdgemm.linalg.lstsq import lstsq
from hdgemm.linalg.lu import lu_factor
from hdgemm.linalg.preflight import plan
from hdgemm.linalg.qr import qr
from hdgemm.linalg.solve import solve
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.stores import create_matrix
from hdgemm.product.arguments import result_dtype
from hdgemm.product.target import check_location

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hdgemm.call.plans import LinearPlan
    from hdgemm.durable.run import Checkpointing
    from hdgemm.options import Options
    from hdgemm.progress import Watch
    from hdgemm.report import Report


@dataclass(frozen=True, slots=True)
class Routine:
    """A routine that reads one or two matrices and stores one.

    Parameters
    ----------
    call
        Takes the operands and keywords; its results are in `out`.
    operands
        Names of the matrices that it reads.
    durable
        It takes `checkpoint` and `restart`.
    """

    call: Callable[..., Any]
    operands: tuple[str, ...] = ("a",)
    durable: bool = False


def _syrk(a: Any, *, lower: bool = False, trans: bool = False, **keywords: Any) -> Any:
    return syrk(1.0, a, trans=int(trans), lower=int(lower), **keywords)


ROUTINES: Final[Mapping[str, Routine]] = {
    "cholesky": Routine(cholesky, durable=True),
    "lu": Routine(lu_factor, durable=True),
    "qr": Routine(qr, durable=True),
    "solve": Routine(solve, ("a", "b"), durable=True),
    "lstsq": Routine(lstsq, ("a", "b"), durable=True),
    "syrk": Routine(_syrk),
}


def run_routine(
    name: str,
    operands: tuple[Any, ...],
    out: Any,
    *,
    parameters: Mapping[str, Any],
    options: Options,
    watch: Watch,
    checkpoint: Checkpointing = False,
    restart: bool = False,
) -> Report:
    """Execute a routine of `ROUTINES`, and return its report.

    Parameters
    ----------
    parameters
        The routine's own keywords.

    Raises
    ------
    InputError
        For arguments that do not fit together, and a checkpoint that the routine does not have.
    """
    routine = ROUTINES[name]
    keywords: dict[str, Any] = {
        "out": out,
        "options": options,
        "progress": watch.progress,
        "observer": watch.observer,
        "cancel": watch.cancel,
        **parameters,
    }
    if routine.durable:
        keywords |= {"checkpoint": checkpoint, "restart": restart}
    elif checkpoint or restart:
        durable = ", ".join(name for name, each in ROUTINES.items() if each.durable)
        raise InputError(f"{name} has no checkpoint; {durable} have one")
    reports: list[Report] = []
    routine.call(*operands, report=reports.append, **keywords)
    return reports[-1]


def plan_routine(
    name: str,
    operands: tuple[Any, ...],
    out: Any,
    *,
    options: Options,
    parameters: Mapping[str, Any] | None = None,
    checkpoint: bool = False,
) -> LinearPlan:
    """Return the plan that `run_routine` executes; `out` is checked as for a run."""
    if out is not None:
        _check_out(name, operands, out, parameters or {}, durable=checkpoint)
    return plan(
        name,
        operands[0],
        columns=operands[1] if len(operands) > 1 else 1,
        out=out,
        options=options,
        checkpoint=checkpoint,
        **(parameters or {}),
    )


def _check_out(
    name: str,
    operands: tuple[Any, ...],
    out: Any,
    parameters: Mapping[str, Any],
    *,
    durable: bool,
) -> None:
    """Refuse a location that the run refuses: a file without a name is begun there and discarded.

    A store is looked at only: to begin a matrix would change it.
    """
    place = parse_location(out)
    check_location(place, operands[-1 if name == "solve" else 0], None)
    if not place.kind.whole_file:
        place.kind.check_new(place, durable=durable)
        return
    with ExitStack() as stack:
        opened = [stack.enter_context(open_columns(x)[0]) for x in operands]
        (m, n), right = opened[0].shape, opened[-1].shape
        shapes = {"solve": right, "lstsq": (n, right[1])}
        shapes["syrk"] = (n, n) if parameters.get("trans") else (m, m)
        if parameters.get("mode") == "r":
            shapes["qr"] = min(m, n), n
        dtype = result_dtype(*(x.dtype for x in opened))
        draft = create_matrix(place, shapes.get(name, (m, n)), dtype, sparse=True)
        stack.enter_context(draft)
