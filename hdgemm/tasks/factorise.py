"""Factorisations of arrays in RAM by tasks, on the host and on opened devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hdgemm.fortran import getrf
from hdgemm.tasks.algorithms import Factorised, Pivots, finish_pivots
from hdgemm.tasks.capability import HOST, Capability
from hdgemm.tasks.kernels import factor_diagonal
from hdgemm.tasks.machine import LAPACK, lapack_flops
from hdgemm.tasks.runtime import Runtime
from hdgemm.tasks.task import Kernel

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.timeline import Observer
    from hdgemm.tasks.machine import TaskMachine


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
    of the block columns are the model's where None.
    """
    shape = (array.shape[0], array.shape[1])
    asked = widths
    widths, dealt = machine.choose(name, shape, asked, array.dtype)
    if dealt.dealing == "host" and name in LAPACK:
        return _factor_by_lapack(dealt, name, array, observer, cancel)
    cut = dealt.cut(name, shape, widths, array=array)
    with Runtime(
        dealt.without_workspace(shape[0], widths, array.dtype),
        dealt.devices,
        priorities=machine.priorities,
        blas_threads=machine.blas_threads,
        observer=observer,
        cancel=cancel,
    ) as runtime:
        found: Any = dealt.insert_all(name, cut, runtime)
        seconds = runtime.finish().seconds
    machine.correct(name, shape, asked, array.dtype, seconds)
    if isinstance(found, Pivots):
        finish_pivots(cut, found)
        return Factorised(found.rows, tuple(sorted(found.zeros)))
    triangles = tuple(tile.data() for tile in found) if name == "qr" else ()
    return Factorised(triangles=triangles)


def _factor_by_lapack(
    machine: TaskMachine,
    name: str,
    array: NDArray[Any],
    observer: Observer | None,
    cancel: threading.Event | None,
) -> Factorised:
    """Factor by one call of LAPACK, as one task, on all threads of the host."""
    found: list[Factorised] = []

    def host() -> None:
        if name == "cholesky":
            factor_diagonal(array, 0)
            found.append(Factorised())
        else:
            pivots, zero = getrf(array)
            found.append(Factorised(pivots, (zero,) if zero else ()))

    kernel = Kernel("lapack", lapack_flops(name, (array.shape[0], array.shape[1])), host=host)
    with Runtime(
        [Capability(name=HOST, rates={"lapack": 1.0})],
        observer=observer,
        cancel=cancel,
        blas_threads=machine.threads,
    ) as runtime:
        runtime.insert(kernel)
        runtime.finish()
    return found[0]
