"""Expected durations of slab plans, from the rates of a machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hdgemm.fortran import cholesky_pairs, elimination_pairs
from hdgemm.linalg.planning.slab import PANEL, Columns, panels
from hdgemm.matrices.filematrix import GAP
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.linalg.planning.devices import SlabDevices
    from hdgemm.linalg.planning.slab import SlabPlan
    from hdgemm.machine.rates import Machine

#: Parts of a factorisation, each with a predicted and a measured duration: reading slabs and the
#: earlier columns, updating slabs, factoring them, writing them, and the last pass of LU.
PHASES: Final = ("load", "update", "panel", "store", "interchange")
#: Extra time of QR's panels, one block wide, over as many multiply-adds' time: geqrt3 ran at 0.43
#: of the rate of the updates with 192 columns of 8192 rows.
_SLOWER: Final = 1.3
#: Seconds to apply the reflectors of one block to another one, besides the multiplications: 0.17 to
#: 0.24 ms with blocks of 4 to 16 columns of 512 rows.
_APPLYING: Final = 2e-4
#: Part of the disk's rate at which short pieces of rows are read with their gaps: requests are
#: short, and the pieces are copied (measured: 0.91 of 1.65 GB/s).
_SHORT_ROWS: Final = 0.55
#: Time to begin a request for one short piece of a row, where several threads make them, and the
#: core time that it takes (measured: 30 µs, and 15 to 40 µs of a core, with pieces of 2 to 40 KiB).
_REQUEST_SECONDS: Final = 30e-6
_PIECE_SECONDS: Final = 30e-6
#: Time to begin to read one block of earlier columns (measured: 0.23 to 0.36 ms, with blocks of 1
#: to 16 columns of 2000 rows).
_BLOCK_SECONDS: Final = 2.5e-4
#: Time that the updates by one block take on a device besides their operations, and that a panel
#: takes to go to the host and back: 2 ms and more on an H100 (LU and QR of order 12288).
_STEP_SECONDS: Final = 2e-3
#: Runs of slabs, one slab of each of which is priced: a search prices dozens of plans of up to
#: 10,000 slabs, and a slab takes 30 µs.
_RUNS: Final = 32


def priced(plan: SlabPlan, machine: Machine, devices: SlabDevices | None = None) -> SlabPlan:
    """Return the plan with its expected duration, by phase too, and what limits it.

    `machine` is the host, which updates slabs where `devices` do not.
    """
    phases = dict.fromkeys(PHASES, 0.0)
    exposed = final = 0.0
    last, all_earlier = len(plan.slabs) - 1, plan.earlier_bytes()
    all_streamed = plan.read_of(all_earlier)
    for number, count in _samples(plan):
        slab, earlier, streamed = plan.slabs[number], all_earlier[number], all_streamed[number]
        # Copies between layouts and alignments, and requests for pieces of rows, take time of the
        # cores that multiply.
        pieces = 0 if plan.copied or plan.gap_bytes(slab) <= GAP else plan.m - slab.top
        copying = (streamed + 2 * plan.nbytes(slab)) / machine.copy + pieces * _PIECE_SECONDS
        copying /= machine.cores
        if devices is None:
            update, panel = _kernel_seconds(plan, slab, earlier, machine)
        else:
            update, panel = _resident_seconds(plan, slab, earlier, machine, devices)
        computing = update + panel + copying
        streaming = streamed / machine.disk_read + _streamed_blocks(plan, slab) * _BLOCK_SECONDS
        load = _load_seconds(plan, number, machine)
        store = plan.nbytes(slab) / machine.disk_write if plan.stores else 0.0
        # With two buffers only the first load and the last store have nothing to overlap; columns
        # that are contiguous are computed while later ones are loaded.
        head = load if number == 0 and plan.row_bytes else 0.0
        edges = head + (store if number == last else 0.0)
        alone = edges if plan.slab_buffers > 1 else load + store
        exposed += count * (
            computing + alone + max(0.0, streaming + load + store - alone - computing)
        )
        phases["load"] += count * (load + streaming)
        phases["store"] += count * store
        phases["update"] += count * (update + copying)
        phases["panel"] += count * panel
        final += count * sum(map(plan.nbytes, plan.interchanged_of(slab)))
    final /= min(machine.disk_read, machine.disk_write)
    phases["interchange"] = final
    kernel = phases["update"] + phases["panel"]
    limit = "disk" if phases["load"] + phases["store"] + final > kernel else "kernel"
    return replace(
        plan,
        expected_seconds=exposed + final,
        expected_phase_seconds=phases,
        expected_limit=limit,
    )


def _samples(plan: SlabPlan) -> Iterator[tuple[int, float]]:
    """Yield numbers of slabs, and how many slabs each of them stands for.

    The first slabs and the last one, which are loaded and stored in other ways, stand for
    themselves. The others form runs of equal length: the slab in the middle of a run stands for the
    run's columns. The midpoint rule is exact for durations that grow linearly over a run.
    """
    end = len(plan.slabs) - 1
    head = min(plan.slab_buffers, end + 1)
    yield from ((number, 1.0) for number in range(head))
    length = max(1, -(-(end - head) // _RUNS))
    for first in range(head, end, length):
        stop = min(first + length, end)
        ends, middle = (plan.slabs[first], plan.slabs[stop - 1]), (first + stop) // 2
        columns = max(slab.last for slab in ends) - min(slab.first for slab in ends)
        yield middle, columns / plan.slabs[middle].width
    if end >= head:
        yield end, 1.0


def _streamed_blocks(plan: SlabPlan, slab: Columns) -> int:
    """Return about how many blocks are read to update a slab."""
    if plan.kind in ("form q", "apply q"):
        columns = plan.reflectors.last if plan.kind == "apply q" else slab.last
    else:
        columns = min(slab.first, plan.pivots)
        if plan.held:
            columns = max(0, columns - slab.width)
    return -(-columns // plan.block)


def _load_seconds(plan: SlabPlan, number: int, machine: Machine) -> float:
    """Return the seconds to load a slab; with the first one others are filled or copied."""
    if not plan.copied:
        return _columns_seconds(plan, plan.slabs[number], machine)
    if number == 0:
        copied = plan.nbytes(Columns(plan.slabs[plan.slab_buffers].first, plan.n, 0))
        return _columns_seconds(plan, plan.banded(0), machine) + copied / machine.disk_write
    return plan.nbytes(plan.slabs[number]) / machine.disk_read if number >= plan.slab_buffers else 0


def _columns_seconds(plan: SlabPlan, columns: Columns, machine: Machine) -> float:
    """Return the seconds to read some columns of A."""
    if not plan.gap_bytes(columns):
        return plan.nbytes(columns) / machine.disk_read
    rows, gap = plan.m - columns.top, plan.gap_bytes(columns)
    if gap > GAP:
        return plan.nbytes(columns) / machine.disk_read + rows * _REQUEST_SECONDS
    return (plan.nbytes(columns) + rows * gap) / (_SHORT_ROWS * machine.disk_read)


def _kernel_seconds(
    plan: SlabPlan, slab: Columns, earlier: int, machine: Machine
) -> tuple[float, float]:
    """Return the seconds of the updates and of the panel of one slab."""
    rate, width = machine.flop_rate(plan.dtype), slab.width
    first = min(slab.first, plan.pivots)
    rows = plan.m - first
    per_pair = flops_per_multiply_add(plan.dtype)
    update, panel = _pairs(plan, slab, earlier)
    if plan.kind == "qr":
        panel += _SLOWER * plan.block * width * rows
    speed = rate * float(machine.efficiency(max(1, rows), width, plan.block))
    seconds = per_pair * update / speed
    if plan.kind == "qr":
        blocks, earlier = -(-width // plan.block), -(-first // plan.block)
        seconds += _APPLYING * blocks * (earlier + blocks / 2)
    # Each block passes the slab through the caches, which overlaps with the multiplications in
    # part: with 128 columns gemm ran at 0.93 of its rate with 512.
    seconds += plan.itemsize * update / (plan.block * machine.memory)
    return seconds, per_pair * panel / rate


def _resident_seconds(
    plan: SlabPlan, slab: Columns, earlier: int, machine: Machine, devices: SlabDevices
) -> tuple[float, float]:
    """Return the seconds of the updates on devices, and of the panels, which the host factors.

    Blocks are uploaded while others are multiplied; nothing overlaps the slab's own transfers.
    """
    width, each = slab.width, devices.machines
    rows = max(1, plan.m - min(slab.first, plan.pivots))
    update, own = _pairs(plan, slab, earlier)
    # Of the slab's own columns the host factors panels, devices update the columns right of them.
    panel = own * min(1.0, min(plan.block, PANEL) / width)
    if plan.kind == "qr":
        panel += _SLOWER * plan.block * width * rows
    per_pair = flops_per_multiply_add(plan.dtype)
    part = max(1, width // len(each))
    speed = sum(x.flop_rate(plan.dtype) * float(x.efficiency(rows, part, plan.block)) for x in each)
    up, down = (min(getattr(x, name) for x in each) for name in ("pcie_up", "pcie_down"))
    sent = earlier + plan.nbytes(slab) / 2
    pairs = update + own - min(own, panel)
    computing = per_pair * pairs / speed
    if any(device.host_cores for device in devices.devices):  # see `_kernel_seconds`
        computing += plan.itemsize * pairs / (plan.block * min(x.memory for x in each))
    steps = len(panels(plan, slab)) + earlier / (plan.itemsize * rows * plan.block)
    seconds = max(computing + steps * _STEP_SECONDS, sent / up)
    seconds += plan.nbytes(slab) / len(each) * (1 / up + 1 / down)
    return seconds, per_pair * panel / machine.flop_rate(plan.dtype)


def _pairs(plan: SlabPlan, slab: Columns, earlier: int) -> tuple[float, float]:
    """Return the multiply-adds of a slab's update by earlier columns, and of its own columns."""
    m, width = plan.m, slab.width
    first = min(slab.first, plan.pivots)
    rows = m - first
    if plan.kind == "cholesky":
        update = first * (width * (rows - width) + width * (width + 1) / 2)
        panel = cholesky_pairs(rows, width)
    elif plan.kind in ("form q", "apply q"):
        update = 2 * width * earlier / plan.itemsize
        panel = 0
    else:
        update = width * (first * m - first**2 / 2)
        panel = elimination_pairs(rows, width)
    if plan.kind == "qr":
        return 2 * update, 2 * panel
    return update, panel
