"""Factorisations of arrays in RAM by tasks, on the host and on opened devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.fortran import getrf
from hdgemm.tasks.algorithms import Pivots, finish_pivots
from hdgemm.tasks.capability import HOST, Capability
from hdgemm.tasks.kernels import factor_diagonal
from hdgemm.tasks.machine import LAPACK, lapack_flops
from hdgemm.tasks.runtime import Runtime
from hdgemm.tasks.task import Kernel

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.timeline import Observer, Timeline
    from hdgemm.tasks.machine import TaskMachine


@dataclass(frozen=True, slots=True)
class Factorised:
    """What a factorisation leaves beside the factors in the array, and the timeline of all devices.

    `pivots` and `zeros` are those of LU: 0-based interchanges as LAPACK's, and 1-based indices of
    zero pivots. `triangles` are those of QR: T of the compact WY form of each panel.
    """

    timeline: Timeline
    pivots: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    zeros: tuple[int, ...] = ()
    triangles: tuple[NDArray[Any], ...] = ()


def factor(
    machine: TaskMachine,
    name: str,
    array: NDArray[Any],
    *,
    widths: Sequence[int] | None = None,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
) -> Factorised:
    """Overwrite a column-major array by its factors: "cholesky" (lower), "lu", "calu" or "qr".

    "calu" is LU with tournament pivoting. On the host alone LAPACK factors what it can. `widths`
    are those of the block columns; None: the model's.
    """
    shape = (array.shape[0], array.shape[1])
    asked = widths
    widths, dealt = machine.choose(name, shape, asked, array.dtype)
    if dealt.dealing == "host" and name in LAPACK:
        return _factor_by_lapack(dealt, name, array, observer, cancel)
    cut = dealt.cut(name, shape, widths, array=array)
    with Runtime(
        dealt.without_workspace(shape[0], widths, array.dtype), dealt.devices,
        priorities=machine.priorities, blas_threads=machine.blas_threads, observer=observer,
        cancel=cancel,
    ) as runtime:  # fmt: skip
        found: Any = dealt.insert_all(name, cut, runtime)
        timeline = runtime.finish()
    machine.correct(name, shape, asked, array.dtype, timeline.seconds)
    if isinstance(found, Pivots):
        finish_pivots(cut, found)
        return Factorised(timeline, found.rows, tuple(sorted(found.zeros)))
    triangles = tuple(tile.data() for tile in found) if name == "qr" else ()
    return Factorised(timeline, triangles=triangles)


def _factor_by_lapack(
    machine: TaskMachine, name: str, array: NDArray[Any], observer: Observer | None,
    cancel: threading.Event | None,
) -> Factorised:  # fmt: skip
    """Factor by one call of LAPACK, as one task, on all threads of the host."""
    pivots: list[NDArray[np.int64]] = []
    zeros: list[int] = []

    def host() -> None:
        if name == "cholesky":
            factor_diagonal(array, 0)
            return
        found, zero = getrf(array)
        pivots.append(found)
        zeros.extend([zero] if zero else [])

    kernel = Kernel("lapack", lapack_flops(name, (array.shape[0], array.shape[1])), host=host)
    with Runtime(
        [Capability(name=HOST, rates={"lapack": 1.0})], observer=observer, cancel=cancel,
        blas_threads=machine.threads,
    ) as runtime:  # fmt: skip
        runtime.insert(kernel)
        timeline = runtime.finish()
    rows = pivots[0] if pivots else np.empty(0, np.int64)
    return Factorised(timeline, rows, tuple(zeros))
