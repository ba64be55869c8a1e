"""Measured rates of a machine: of each kind of task on each device, of copies, and of LAPACK."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.fortran import getrf, potrf
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.tasks.algorithms import ALGORITHMS
from hdgemm.tasks.block_columns import BlockColumns, even_widths
from hdgemm.tasks.capability import HOST
from hdgemm.tasks.machine import LAPACK, lapack_flops
from hdgemm.tasks.runtime import Runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hdgemm.tasks.machine import TaskMachine

#: The least and largest orders of the matrix on which capabilities are measured. A GPU is far from
#: its rates on the least one.
_LEAST_PROBE, _LARGEST_PROBE = 768, 3072
#: Block columns of that matrix.
_COLUMNS: Final = 6
#: Seconds that the runtime takes for a task, assumed.
_LATENCY: Final = 50e-6


def probe_order(n: int) -> int:
    """Return the order of the matrix on which rates are measured for matrices of order n.

    An eighth: each of the measurements takes less than a hundredth of the time of the matrix.
    """
    unit = 128 * _COLUMNS
    return min(max(n // 8 // unit * unit, _LEAST_PROBE), _LARGEST_PROBE)


def measured(
    machine: TaskMachine, name: str, dtype: np.dtype[Any], order: int = _LEAST_PROBE
) -> TaskMachine:
    """Return a machine with the rates that it reaches on matrices of an order, see `probe_order`.

    Each device runs all updates of one factorisation, and another one before it, in which its
    kernels are compiled (Dongarra et al., section 6.2: estimated from the elapsed time). A device
    that cannot hold the small matrix's panels is left out.
    """
    found = []
    for each in machine.capabilities:
        alone = machine.restricted([x for x in machine.devices if x == each.name], machine.dealing)
        try:
            for _ in range(2):
                rates, copied = _probe(alone, _matrix(name, order, dtype), name, each.name)
        except DoesNotFitError:
            continue
        own = rates.get(each.name, {})
        memory = own.get("laswp", each.memory)
        up = copied.get((each.name, "load2"), each.up)
        down = copied.get((each.name, "store1"), each.down)
        found.append(replace(each, rates=own, memory=memory, up=up, down=down, latency=_LATENCY))
    machine = replace(machine, capabilities=tuple(found))
    machine = machine.restricted([x.name for x in found if x.name != HOST], machine.dealing)
    lapack = (
        _lapack_rate(machine, name, dtype, 2 * order) if machine.devices and name in LAPACK else 0.0
    )
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
    machine: TaskMachine, array: NDArray[Any], name: str, updates: str
) -> tuple[dict[str, dict[str, float]], dict[tuple[str, str], float]]:
    """Factor a matrix with all updates on one device; return the rates of tasks and of copies."""
    order = len(array)
    widths = even_widths(order, order // _COLUMNS)
    cut = BlockColumns.cut(
        array.shape, widths, array=array, lower=name == "cholesky", weights={updates: 1.0}
    )
    with Runtime(
        machine.without_workspace(order, widths, array.dtype),
        machine.devices,
        blas_threads=machine.blas_threads,
    ) as runtime:
        ALGORITHMS[name](cut, runtime.insert)
        runtime.finish()
    return runtime.rates(), runtime.copy_rates()


def _lapack_rate(machine: TaskMachine, name: str, dtype: np.dtype[Any], order: int) -> float:
    """Return flop/s of LAPACK on all threads of the host: the better of two runs."""
    seconds = []
    with blas_threads(machine.threads):
        for _ in range(2):
            array = _matrix(name, order, dtype)
            began = time.perf_counter()
            if name == "cholesky":
                potrf(array)
            else:
                getrf(array)
            seconds.append(time.perf_counter() - began)
    return lapack_flops(name, (order, order)) / min(seconds)
