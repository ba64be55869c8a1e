"""Seconds that moving one tile takes of its stages and of what they use, for many shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hdgemm.planning.load_counts import average_tile
from hdgemm.planning.memory import PIECE_BYTES
from hdgemm.planning.storage_chunks import decoded

if TYPE_CHECKING:
    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import DeviceSpec, Operand, Overlap, Problem
    from hdgemm.planning.shapes import Shapes

#: Seconds, an array with one element a shape.
Seconds: TypeAlias = Any
#: Seconds by stage or by resource.
Busy: TypeAlias = dict[str, Seconds]


def tile_busy(
    problem: Problem,
    device: DeviceSpec,
    overlap: Overlap,
    shapes: Shapes,
    machine: Machine,
    operand: Operand,
) -> Busy:
    """Return the seconds that one tile takes of its stages and of what they use, by name."""
    spec = problem.spec(operand)
    tile = average_tile(problem, shapes, operand)
    nbytes = tile.elements * spec.itemsize
    pieces = np.ceil(tile.elements * problem.itemsize / PIECE_BYTES)
    gaps = pieces * machine.operation_seconds
    near, far = ("store2", "store1") if operand == "C" else ("load1", "load2")
    link = "pcie_down" if operand == "C" else "pcie_up"
    busy: Busy = {}
    if spec.path == "resident":
        return busy
    if not device.unified and (operand != "C" or overlap.c_on_device):
        rate = machine.pcie_down if operand == "C" else machine.pcie_up
        busy[link] = tile.elements * problem.itemsize / rate
        busy[far] = busy[link] + gaps
    if spec.path != "staged":
        return busy
    again = 1 if operand == "C" and problem.reads_c else 0
    if spec.place == "file":
        nbytes = nbytes * decoded(problem, shapes, operand)
        decoding = nbytes / machine.decode * spec.encoded
        rate = machine.disk_write if operand == "C" else machine.disk_read
        busy["disk"] = nbytes / rate + again * nbytes / machine.disk_read
        requests = tile.requests * (1 + again)
        busy["cores"] = (requests * machine.request_seconds + decoding) / machine.cores
        alone = np.maximum(np.maximum(busy["disk"], busy["cores"]), decoding)
    else:
        moved = nbytes * (1 + again)
        busy["host_memory"] = 2 * moved / machine.memory
        alone = moved / machine.copy
        busy["cores"] = alone / machine.cores
    busy[near] = alone + gaps
    return busy
