"""QR of an array in RAM on several devices: the reflectors by tasks, Q from them on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hdgemm.call.recorder import Recorder
from hdgemm.errors import InputError
from hdgemm.linalg.planning.slab import Columns
from hdgemm.linalg.slabs.slab import Slab, check_finite_slab
from hdgemm.linalg.stored_factors import QRFactors
from hdgemm.matrices.stores import is_stored
from hdgemm.product.arguments import check_out_dtype, check_shape
from hdgemm.product.target import is_location
from hdgemm.run.members import device_names
from hdgemm.tasks.kernels import apply_reflectors, reflectors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hdgemm.call.run import OpenRun
    from hdgemm.linalg.devices.run import Strategy
    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.matrices.stored import StoredMatrix


def on_disk(a: Any, outs: Any) -> bool:
    """Say whether an operand or a result is not an array."""
    places = outs if isinstance(outs, tuple | list) else (outs,)
    return any(is_location(x) or is_stored(x) for x in (a, *places))


def qr_on_devices(
    source: StoredMatrix,
    plan: SlabPlan,
    outs: tuple[Any, Any],
    mode: str,
    factor: Strategy,
    run: OpenRun,
    check_finite: bool,
) -> tuple[Any, ...]:
    """Return what `hdgemm.linalg.qr` returns, in new arrays or in the arrays `outs`."""
    m, n = source.shape
    k = min(m, n)
    array = np.empty((m, n), source.dtype.newbyteorder("="), "F")
    recorder = Recorder(run.callbacks, plan.flops, devices=device_names(run.options))
    with recorder.operation("load1", 0, nbytes=array.nbytes):
        source.read(array)
    if check_finite:
        check_finite_slab(Slab(0, Columns(0, n, 0), array))
    done = factor("qr", array, run, recorder)
    rows = {"full": m, "economic": k, "raw": k, "r": m}[mode]
    r = _stored(np.triu(array[:rows]), outs[1])
    if mode == "r":
        found: tuple[Any, ...] = (r,)
    elif mode == "raw":
        tau = np.concatenate([np.empty(0, array.dtype), *(np.diagonal(t) for t in done.triangles)])
        found = QRFactors(_stored(array, outs[0]), tau), r
    else:
        found = _stored(_form_q(array, done.triangles, rows), outs[0]), r
    recorder.finish(plan)
    return found


def _form_q(array: NDArray[Any], triangles: Sequence[NDArray[Any]], columns: int) -> NDArray[Any]:
    """Return the first columns of Q = H(1)·H(2)·…, applied to the identity from the right."""
    q = np.zeros((array.shape[0], columns), array.dtype, "F")
    np.fill_diagonal(q, 1)
    first = sum(len(t) for t in triangles)
    for t in reversed(triangles):
        last, first = first, first - len(t)
        apply_reflectors(reflectors_of(array[first:, first:last]), t, q[first:, first:], "N")
    return q


def _stored(result: NDArray[Any], out: Any) -> Any:
    """Return a result, or the array that the caller gave for it."""
    if out is None:
        return result
    if not isinstance(out, np.ndarray):
        raise InputError(f"on devices, out must be arrays, got {type(out).__name__}")
    check_shape(out.shape, result.shape, "out")
    check_out_dtype(out.dtype, result.dtype)
    out[...] = result
    return out
