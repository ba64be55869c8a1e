"""Plans of the products and routines that jobs describe, made with the library."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.matrices.factor_files import FactorFiles
from hdgemm.matrices.layout import as_dtype
from hdgemm.routines.registry import commands
from hdgemm.server.backend import Demand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.options import Options
    from hdgemm.server.backend import Problem, Source

#: A map of more work units than this shows nothing that a percentage does not.
_MOST_MAPPED: Final = 2500


def plan_problem(problem: Problem, options: Options) -> Demand:
    """Plan a product or a routine as it will run; the children of `Planner` call it."""
    with TemporaryDirectory(prefix="hdgemm-plan-") as scratch:
        folder = Path(scratch)
        paths = {
            name: operand.path or _stand_in(folder / f"{name}.npy", operand)
            for name, operand in problem.operands.items()
        }
        out = (problem.folder or folder) / ".hdgemm-plan.npy"
        if problem.process in commands():
            return _plan_routine(problem, paths, out, options)
        return _plan_product(problem, paths, out, options)


def _plan_routine(
    problem: Problem, paths: Mapping[str, Path], out: Path, options: Options
) -> Demand:
    from hdgemm.call.keywords import Call
    from hdgemm.linalg.routines import plan_routine

    routine, given = commands()[problem.process], problem.parameters
    outs = routine.places(given, out, FactorFiles.of(out).array)
    call = Call(options, checkpoint=routine.durable and routine.stores)
    plan = plan_routine(routine, paths, outs, given, call)
    # Solutions with the factors take all memory that is allowed, for columns of B.
    whole = options.host_bytes if problem.process == "solve" else None
    return Demand(whole or plan.host_bytes, plan.summary())


def _plan_product(
    problem: Problem, paths: Mapping[str, Path], out: Path, options: Options
) -> Demand:
    import hdgemm

    product: dict[str, Any] = {**paths, **problem.parameters}
    if not product.get("beta"):
        product.pop("c", None)  # a check has a C that is no input of the product
    plans = hdgemm.plan(**product, out=out, options=options)
    if not plans:
        extents = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype}
        return Demand(0, extents)
    summary, units = plans.summary(), plans[0].units
    # Several devices draw their units while they run.
    drawn = len(plans) == 1 and len(units) <= _MOST_MAPPED
    return Demand(summary["host_bytes"], summary, [[*u.rect] for u in units] if drawn else [])


def _stand_in(path: Path, operand: Source) -> Path:
    """Make a sparse file for the result of a job that has not run yet."""
    rows, cols = operand.shape
    dtype = as_dtype(operand.dtype)
    with path.open("wb") as stream:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (rows, cols)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + rows * cols * dtype.itemsize)
    return path
