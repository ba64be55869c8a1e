"""Products that update slabs in memory: by the host's BLAS, or by the engine on other devices.

Slab factorisations compute panels and small triangular systems by LAPACK on the host. All other
work is C := C + alpha·op(A)·op(B) with A in a stream block, and B and C in the slab.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from hdgemm.errors import CancelledRunError, DoesNotFitError
from hdgemm.fortran import gemm
from hdgemm.linalg.device_run import device_names
from hdgemm.machine.limits import default_host_bytes
from hdgemm.matrices.operands import open_operand
from hdgemm.pipeline.plan import OperandSpec, Problem, flops_per_multiply_add
from hdgemm.product.product import Product
from hdgemm.progress import Watch
from hdgemm.run.engine import run_product
from hdgemm.run.members import names_for, plan_members

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hdgemm.linalg.recorder import Recorder
    from hdgemm.linalg.run import OpenRun
    from hdgemm.linalg.slab_plan import SlabPlan
    from hdgemm.options import Options
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import Path

#: Columns of a stream block that are tried where devices compute the updates.
_DEPTHS: Final = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
#: Columns that the host factors at once where devices compute the updates.
_PANEL: Final = 256
#: The part of the host memory that products on devices may take for staging: one in `_PART`.
_PART: Final = 4


class Products(Protocol):
    """Computes C := C + alpha·op(A)·op(B) on arrays in memory."""

    def add(
        self, place: tuple[int, int], alpha: float, a: NDArray[Any], b: NDArray[Any],
        c: NDArray[Any], *, trans_a: str = "N", trans_b: str = "N",
    ) -> None:  # fmt: skip
        """Add a product to C; `place` is the slab and the stream block, for events.

        `trans_a` and `trans_b` are N (as it is) or C (conjugate transposed).
        """


@dataclass(frozen=True, slots=True)
class HostProducts:
    """Products by the host's BLAS, in the calling thread."""

    recorder: Recorder

    def add(
        self, place: tuple[int, int], alpha: float, a: NDArray[Any], b: NDArray[Any],
        c: NDArray[Any], *, trans_a: str = "N", trans_b: str = "N",
    ) -> None:  # fmt: skip
        """Add a product to C."""
        slab, block = place
        depth = a.shape[1] if trans_a == "N" else a.shape[0]
        flops = flops_per_multiply_add(c.dtype.name) * c.size * depth
        if not flops:
            return
        with self.recorder.operation("mult1", slab, flops=flops, block=block):
            gemm(alpha, a, b, c, trans_a=trans_a, trans_b=trans_b)


@dataclass(frozen=True, slots=True)
class DeviceProducts:
    """Products by the engine, on the devices of a session."""

    plan: SlabPlan
    run: OpenRun
    recorder: Recorder

    def add(
        self, place: tuple[int, int], alpha: float, a: NDArray[Any], b: NDArray[Any],
        c: NDArray[Any], *, trans_a: str = "N", trans_b: str = "N",
    ) -> None:  # fmt: skip
        """Add a product to C, which is column-major: the engine computes C^T := C^T + B^T·A^T.

        The tile is that of the slab plan, so that a run that goes on rounds as the first one did.
        """
        self.recorder.check_cancel()
        if not (c.size and a.size):
            return
        old = open_operand(c, what="c", writable=True)
        product = Product(
            _operand(a, trans_a), _operand(b, trans_b), old, old, alpha, 1.0, c.dtype, c
        )
        tile = self.plan.tile
        if tile is not None and trans_a == "C":  # rows of the slab are the depth
            tile = (tile[0], tile[2], tile[1])
        asked, session, _ = self.run
        options = replace(asked, host_memory=staging_bytes(asked), tile=tile, verify=False)
        watch = Watch(cancel=self.recorder.cancel)
        try:
            report = run_product(product, options, session, watch, energy=False)
        except CancelledRunError:
            self.recorder.check_cancel()  # raises what the factorisation says
            raise
        self.recorder.add_product(report, *place)


def _operand(x: NDArray[Any], trans: str) -> Any:
    flip = trans == "C"
    return open_operand(x, trans=flip, conj=flip and x.dtype.kind == "c")


def products_of(plan: SlabPlan, run: OpenRun, recorder: Recorder) -> Products:
    """Return what computes the products of a slab plan."""
    if plan.devices:
        return DeviceProducts(plan, run, recorder)
    return HostProducts(recorder)


def update_devices(options: Options) -> tuple[str, ...]:
    """Return the devices of the options that compute updates; () for the host alone."""
    return names_for(options, 0) if device_names(options) else ()


def panel_width(plan: SlabPlan) -> int:
    """Return the columns that the host factors at once where devices compute the updates.

    A block of reflectors has one T, and is factored whole.
    """
    return plan.block if plan.kind == "qr" else min(plan.block, _PANEL)


def host_bytes(options: Options) -> int:
    """Return the host memory that one computation may take."""
    return options.host_bytes or default_host_bytes()


def staging_bytes(options: Options) -> int:
    """Return the host memory that products on the devices of the options may take."""
    return host_bytes(options) // _PART if device_names(options) else 0


def with_devices(plan: SlabPlan, host_rate: float, run: OpenRun) -> SlabPlan:
    """Return a slab plan with the devices of its updates, their tile and their expected duration.

    Parameters
    ----------
    host_rate
        Flop/s of the host, which the plan expects of the updates.

    Raises
    ------
    DeviceUnavailableError
        When a device cannot be used.
    DoesNotFitError
        When a tile does not fit a device, or the part of the host memory for staging.
    """
    options = run.options
    names = update_devices(options)
    if not names or not plan.slabs:
        return plan
    width = max(slab.width for slab in plan.slabs)
    depth = plan.block
    if plan.kind in ("lu", "cholesky"):  # the halves of a slab that is alone update each other
        blocks = sum(-(-slab.width // plan.block) for slab in plan.slabs)
        depth = -(-plan.n // (blocks if len(plan.slabs) > 1 else 2))
    itemsize = np.dtype(plan.dtype).itemsize

    def problem_for(device: Device) -> Problem:
        path: Path = "resident" if device.spec.unified else "staged"
        spec = OperandSpec(True, "memory", path, itemsize)
        c = replace(spec, trans=False)
        return Problem(width, max(1, plan.m), depth, plan.dtype, spec, spec, c, reads_c=True)

    forced = None
    if options.tile is not None:
        rows, cols, depth = options.tile
        forced = (cols, rows, depth)
    part = replace(options, host_memory=staging_bytes(options), tile=forced, verify=False)
    members = plan_members(problem_for, names, part, run.session)
    member = next(each.plan for each in members if each.name != "host")
    tile = None if member.in_place else member.tile
    seconds = member.expected.seconds if member.expected is not None else 0.0
    return _repriced(replace(plan, devices=names, tile=tile), member.flops, seconds, host_rate)


def with_best_blocks(
    planned: Callable[[int | None], SlabPlan], block: int | None, host_rate: float, run: OpenRun
) -> SlabPlan:
    """Return the plan of a factorisation with the stream blocks that suit the devices.

    Each block moves the slab that it updates from a device to the host: deep ones move less.

    Parameters
    ----------
    planned
        Plans slabs with stream blocks of so many columns; None for the best ones of the host.
    block
        Forced columns of a block.
    host_rate
        See `with_devices`.
    """
    plan = with_devices(planned(block), host_rate, run)
    few = block is not None or len(plan.slabs) < 2
    if few or not plan.devices or plan.kind not in ("lu", "cholesky"):
        return plan
    plans = [plan]
    with suppress(DoesNotFitError):
        for columns in _DEPTHS:
            if plan.block < columns <= plan.n:
                plans.append(with_devices(planned(columns), host_rate, run))
                if columns >= max(slab.width for slab in plans[-1].slabs):
                    break
    # Disk and kernel overlap in part: compare by the mean of full overlap and none.
    return min(plans, key=lambda each: each.seconds + sum(each.phase_seconds.values()))


def _repriced(plan: SlabPlan, flops: int, seconds: float, host_rate: float) -> SlabPlan:
    """Expect of all updates the rate that devices reach in one product of some flop."""
    phases = dict(plan.phase_seconds)
    if not phases or seconds <= 0:
        return plan
    before = phases["update"] + phases["panel"]
    if plan.kind in ("lu", "cholesky"):  # of the columns of a slab the host factors panels
        phases["panel"] *= min(1.0, panel_width(plan) * len(plan.slabs) / plan.n)
    phases["update"] = (before - phases["panel"]) * host_rate * seconds / flops
    kernel = phases["update"] + phases["panel"]
    disk = phases["load"] + phases["store"] + phases["interchange"]
    total = max(plan.seconds + kernel - before, disk, kernel)
    limit = "disk" if disk > kernel else "kernel"
    return replace(plan, seconds=total, phase_seconds=phases, limit=limit)
