"""Measured rates of a machine: of each kind of task on each device, of copies, and of LAPACK."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from hdgemm.errors import DoesNotFitError
from hdgemm.fortran import getrf, potrf
from hdgemm.tasks.algorithms import ALGORITHMS
from hdgemm.tasks.block_columns import BlockColumns, even_widths
from hdgemm.tasks.capability import HOST
from hdgemm.tasks.machine import LAPACK, lapack_flops
from hdgemm.tasks.runtime import Runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.tasks.machine import TaskMachine

#: Rows and columns of the matrix on which capabilities are measured, and its panels' width.
_PROBE: Final = 768
_PROBE_WIDTH: Final = 128
#: Rows and columns of the matrix on which LAPACK is measured.
_LAPACK_PROBE: Final = 1536
#: Seconds that the runtime takes for a task, assumed.
_LATENCY: Final = 50e-6


def measured(machine: TaskMachine, name: str, dtype: np.dtype[Any]) -> TaskMachine:
    """Return a machine with the rates that it reaches on small matrices.

    Each device runs all updates of one factorisation, and another one before it, in which its
    kernels are compiled (Dongarra et al., section 6.2: estimated from the elapsed time). A device
    that cannot hold the small matrix's panels is left out.
    """
    found = []
    for each in machine.capabilities:
        alone = machine.restricted([x for x in machine.devices if x == each.name], machine.dealing)
        try:
            for _ in range(2):
                rates, copied = _probe(alone, name, dtype, {each.name: 1.0})
        except DoesNotFitError:
            continue
        own = rates.get(each.name, {})
        memory = own.get("laswp", each.memory)
        up = copied.get((each.name, "load2"), each.up)
        down = copied.get((each.name, "store1"), each.down)
        found.append(replace(each, rates=own, memory=memory, up=up, down=down, latency=_LATENCY))
    machine = replace(machine, capabilities=tuple(found))
    machine = machine.restricted([x.name for x in found if x.name != HOST], machine.dealing)
    lapack = _lapack_rate(machine, name, dtype) if machine.devices and name in LAPACK else 0.0
    return replace(machine, lapack=lapack)


def _matrix(name: str, n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a random matrix, of which for Cholesky the diagonal is large enough.

    LU must interchange rows: that takes much of the time of its updates.
    """
    array = np.zeros((n, n), dtype, "F")
    array[...] = np.random.default_rng(0).standard_normal(array.shape)
    if name == "cholesky":
        array.flat[:: n + 1] += 2 * n
    return array


def _probe(
    machine: TaskMachine, name: str, dtype: np.dtype[Any], weights: dict[str, float]
) -> tuple[dict[str, dict[str, float]], dict[tuple[str, str], float]]:
    array = _matrix(name, _PROBE, dtype)
    cut = BlockColumns.cut(
        array.shape, even_widths(_PROBE, _PROBE_WIDTH), array=array, lower=name == "cholesky",
        weights=weights,
    )  # fmt: skip
    with Runtime(
        machine.without_workspace(_PROBE, [_PROBE_WIDTH], array.dtype),
        machine.devices,
        blas_threads=machine.blas_threads,
    ) as runtime:
        ALGORITHMS[name](cut, runtime.insert)
        runtime.finish()
    return runtime.rates(), runtime.copy_rates()


def _lapack_rate(machine: TaskMachine, name: str, dtype: np.dtype[Any]) -> float:
    """Return flop/s of LAPACK on all threads of the host: the better of two runs."""
    seconds = []
    with threadpool_limits(machine.threads, user_api="blas"):
        for _ in range(2):
            array = _matrix(name, _LAPACK_PROBE, dtype)
            began = time.perf_counter()
            if name == "cholesky":
                potrf(array)
            else:
                getrf(array)
            seconds.append(time.perf_counter() - began)
    return lapack_flops(name, (_LAPACK_PROBE, _LAPACK_PROBE)) / min(seconds)
