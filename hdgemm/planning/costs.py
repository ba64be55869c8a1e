"""Seconds of one operation of a plan: alone, and of the resources that it shares with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hdgemm.pipeline.plan import flops_per_multiply_add
from hdgemm.pipeline.tiles import Rect
from hdgemm.pipeline.walk import Cut
from hdgemm.planning._storage_chunks import file_requests, moved_area
from hdgemm.planning.byte_counts import op_extents, round_up

if TYPE_CHECKING:
    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Plan
    from hdgemm.pipeline.schedule import Op


class Cost(NamedTuple):
    """Seconds that an operation takes when alone, and seconds of each resource that it uses.

    No demand exceeds `seconds`: an operation that runs alone never waits for a resource.
    """

    seconds: float
    demands: tuple[tuple[str, float], ...]


def op_cost(plan: Plan, machine: Machine, op: Op) -> Cost:
    """Return the cost of one operation of a plan's schedule."""
    if op.stage == "mult1":
        return _multiply(plan, machine, op)
    if op.stage == "load2":
        return _transfer(machine, "pcie_up", op.nbytes / machine.pcie_up)
    if op.stage == "store1":
        return _transfer(machine, "pcie_down", op.nbytes / machine.pcie_down)
    if plan.problem.spec(op.operand).place == "file":
        return _file(plan, machine, op)
    seconds = op.nbytes / machine.copy
    bus = 2 * op.nbytes / machine.memory
    return _cost(machine, {"host_memory": bus, "cores": seconds / machine.cores}, seconds)


def _cost(machine: Machine, demands: dict[str, float], seconds: float = 0.0) -> Cost:
    longest = max(seconds, *demands.values()) + machine.operation_seconds
    return Cost(longest, (*demands.items(), ("interpreter", machine.operation_seconds)))


def _transfer(machine: Machine, link: str, seconds: float) -> Cost:
    used = {link: seconds}
    if machine.on_host_cores:
        used["cores"] = seconds / machine.cores
    return _cost(machine, used)


def _multiply(plan: Plan, machine: Machine, op: Op) -> Cost:
    problem, (rows, cols) = plan.problem, op.rect[2:]
    kb = op.flops // (rows * cols * flops_per_multiply_add(problem.dtype))
    rate = machine.kernel_rate(problem, rows, cols, kb)
    # The device's tiles are padded to its granularity.
    gm, gn, _ = plan.device.granularity
    padding = round_up(rows, gm) * round_up(cols, gn) / (rows * cols)
    seconds = padding * op.flops / rate
    if plan.device.unified:
        return _cost(machine, {"device": seconds, "cores": seconds})
    used = {"device": seconds}
    if machine.on_host_cores:
        used["cores"] = seconds
    if plan.overlap.c_on_device:
        return _cost(machine, used)
    # The kernel writes C across the link (HDGEMM, section 2.2), and waits for it.
    link = rows * cols * problem.itemsize / machine.pcie_down
    return _cost(machine, {**used, "device": seconds + link, "pcie_down": link})


def _file(plan: Plan, machine: Machine, op: Op) -> Cost:
    problem, rect = plan.problem, op.rect
    spec = problem.spec(op.operand)
    tile = rect if op.operand == "C" else loaded_tile(plan, op)
    more = moved_area(problem, op.operand, tile) / tile.area
    if op.stage == "store2":
        one = rect.area * spec.itemsize
        seconds = one / machine.disk_write + (op.nbytes - one) / machine.disk_read
    else:
        seconds = op.nbytes / machine.disk_read
    stored = (rect.cols, rect.rows) if spec.trans else (rect.rows, rect.cols)
    whole = op_extents(problem)[op.operand][0 if spec.trans else 1]
    again = 1 if op.operand == "C" and problem.reads_c else 0
    requests = int(file_requests(spec, *stored, whole)) * (1 + again)
    decoding = more * op.nbytes / machine.decode * spec.encoded
    cores = (requests * machine.request_seconds + decoding) / machine.cores
    return _cost(machine, {"disk": more * seconds, "cores": cores}, decoding)


def loaded_tile(plan: Plan, op: Op) -> Rect:
    """Return the tile of A or B of which an operation loads a piece."""
    course, (row, col, _, _) = plan.course, op.rect
    k, walk = course.a if op.operand == "A" else course.b, course.units.walk
    deep, panels = Cut(walk.chunks.extent, k.depth), course.rows
    if op.operand == "A":
        high, wide = panels.span(row // panels.size), deep.span(col // deep.size)
    else:
        high, wide = deep.span(row // deep.size), course.cols.span(col // course.cols.size)
    return Rect(high.start, wide.start, high.length, wide.length)
