"""Seconds of shapes in closed form: the busiest stage or resource, and the run's two ends.

The formulas take many shapes at once. `expectation.simulate` runs one plan in virtual time,
operation by operation; tests compare the two.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hdgemm.machine.rates import RESOURCES
from hdgemm.pipeline.plan import OPERANDS, STAGES, Expectation
from hdgemm.planning._tile_costs import (
    average_tile,
    tile_busy,
    tile_pieces,
    unit_counts,
    unit_loads,
)
from hdgemm.planning.byte_counts import ceil_div, round_up
from hdgemm.planning.shapes import BLOCKS

if TYPE_CHECKING:
    from hdgemm.pipeline.plan import Operand
    from hdgemm.planning._tile_costs import Busy, PerUnit, Seconds
    from hdgemm.planning.byte_counts import Count
    from hdgemm.planning.case import Case
    from hdgemm.planning.shapes import Shapes

#: The weight of a second in which a transfer is busy beside a second of the run. Rates are never
#: known exactly, so of plans about equally fast the one that moves less is preferred.
CAUTION: Final = 0.02


class Prices(NamedTuple):
    """For each shape its total seconds, and busy seconds by stage and by resource."""

    seconds: Seconds
    stages: Busy
    resources: Busy

    def merits(self) -> Seconds:
        """Return what the search minimises: seconds, and a fraction of the transfers' seconds."""
        moving = sum(seconds for stage, seconds in self.stages.items() if stage != "mult1")
        return self.seconds + CAUTION * moving

    def expectation(self, place: int) -> Expectation:
        """Return one shape's price as a plan's `expected`."""
        limit = max(self.resources, key=lambda name: float(self.resources[name][place]))
        stages = {stage: float(seconds[place]) for stage, seconds in self.stages.items()}
        return Expectation(float(self.seconds[place]), stages, limit)


def price(case: Case, shapes: Shapes) -> Prices:
    """Price every shape."""
    return _Pricing(case, shapes).prices()


def _padded(extent: int, size: Count, quantum: int) -> Count:
    """Return the sum of the padded extents of all tiles of one dimension."""
    whole = ceil_div(extent, size) - 1
    return whole * round_up(size, quantum) + round_up(extent - whole * size, quantum)


def _scaled(busy: Busy, factor: Seconds) -> Busy:
    return {name: factor * seconds for name, seconds in busy.items()}


class _Pricing:
    """The terms of one call to `price`."""

    def __init__(self, case: Case, shapes: Shapes) -> None:
        self.problem, self.machine, self.overlap = case.problem, case.machine, case.overlap
        self.unified, self.granularity = case.device.unified, case.device.granularity
        self.shapes = shapes
        average = {x: average_tile(self.problem, shapes, x) for x in OPERANDS}
        self.pieces = tile_pieces(case, shapes, average)
        self.tiles = {
            x: tile_busy(case, shapes, x, tile, self.pieces[x]) for x, tile in average.items()
        }
        self.chunks = ceil_div(self.problem.k, shapes.kb)
        self.counts = unit_counts(self.problem, shapes)
        self.units = sum(self.counts[1:], start=self.counts[0])

    def prices(self) -> Prices:
        """Add up the seconds of the units of each kind, and of the run's two ends."""
        paced = np.zeros(len(self.shapes.mb))
        a, b = (
            unit_loads(self.problem, self.shapes, operand, reuse=self.overlap.loads)
            for operand in ("A", "B")
        )
        multiply = self._multiply()
        stored = self._with_tiles(multiply, {"C": 1.0})
        loads = [0.0 * paced, 0.0 * paced]
        for count, a_loads, b_loads in zip(self.counts, a, b, strict=True):
            unit = self._with_tiles(stored, {"A": a_loads, "B": b_loads})
            paced = paced + count * self._pace(unit)
            loads = [loads[0] + count * a_loads, loads[1] + count * b_loads]
        totals = self._with_tiles(_scaled(stored, 1.0 * self.units), {"A": loads[0], "B": loads[1]})
        if self.overlap.loads:
            paced = paced + self._prologue() + self._bursts(multiply["mult1"], a.unit, b.unit)
            paced = paced + self._taper(multiply, a, b) + self._epilogue()
        stages, resources = ({n: totals[n] for n in part} for part in (STAGES, RESOURCES))
        return Prices(paced, stages, resources)

    def _with_tiles(self, busy: Busy, counts: dict[Operand, Seconds]) -> Busy:
        """Return busy seconds with so many tiles of each operand moved, too."""
        found = dict(busy)
        for operand, count in counts.items():
            for name, seconds in self.tiles[operand].items():
                found[name] = found[name] + count * seconds
        return found

    def _taper(self, multiply: Busy, a: PerUnit, b: PerUnit) -> Seconds:
        """Return the seconds added by halving the last unit: every part sweeps all of k."""
        halvings = self.shapes.halvings
        extra = 0.0 * multiply["mult1"]
        if not np.any(halvings):
            return extra
        turned: dict[Operand, Seconds] = {"A": self._turned(a), "B": self._turned(b)}
        loads: dict[Operand, Seconds] = {"A": self._last(a), "B": self._last(b)}
        rest = self._rest()
        whole = self._pace(self._with_tiles(_scaled(multiply, rest), loads | {"C": 1.0}))
        for number in range(1, int(np.max(halvings, initial=0)) + 1):
            # While one part is computed, the part before it, twice as large, is stored.
            part = rest * 0.5**number
            pace = self._pace(self._with_tiles(_scaled(multiply, part), loads | {"C": 2 * part}))
            extra = extra + pace * (number <= halvings)
            loads = turned
        smallest = rest * 0.5**halvings
        last = self._pace(self._with_tiles(_scaled(multiply, smallest), turned | {"C": smallest}))
        extra = extra + last * (halvings > 0)
        return extra - whole * (halvings > 0)

    def _rest(self) -> Seconds:
        """Return the rows of the last unit, as a part of the average unit's."""
        m, n, shapes = self.problem.m, self.problem.n, self.shapes
        rows = ceil_div(m, shapes.mb)
        edge = (m - (rows - 1) * shapes.mb) / (m / rows)
        ends_below = (shapes.rows == 1) | (ceil_div(n, shapes.nb) % 2 == 1)
        return np.where(ends_below, edge, shapes.mb / (m / rows))

    def _last(self, loads: PerUnit) -> Seconds:
        """Return the loads of the last unit."""
        alone = np.where(self.counts.bar > 0, loads.bar, loads.run)
        among = np.where(self.counts.bar > 0, loads.unit, loads.first_bar)
        return np.where(self.counts.first_bar > 0, among, alone)

    def _turned(self, loads: PerUnit) -> Seconds:
        """Return the loads of another sweep of k over the same panels: tiles that no slot holds."""
        return np.minimum(np.minimum(loads.first_bar, loads.bar), loads.run)

    def _pace(self, unit: Busy) -> Seconds:
        """Return the seconds of one unit in the steady run: the longest of what overlaps."""
        if self.overlap.loads:
            return reduce(np.maximum, unit.values())
        loading = np.maximum(unit["load1"], unit["load2"])
        alone = unit["mult1"] + unit["store2"]
        if not self.overlap.stores:
            return loading + alone
        # Blocks of one work unit overlap, except for the last store; a cut k allows none.
        last = unit["store2"] / BLOCKS
        blocks = np.maximum(unit["mult1"], unit["store2"] - last) + last
        return loading + np.where(self.shapes.kb >= self.problem.k, blocks, alone)

    def _multiply(self) -> Busy:
        """Return the seconds of one unit's steps."""
        problem, machine, (mb, nb) = self.problem, self.machine, self._c_tile()
        rate = machine.kernel_rate(problem, mb, nb, self.shapes.kb)
        kernel = self._padding() * problem.flops / rate / self.units
        busy: Busy = dict.fromkeys((*STAGES, *RESOURCES), 0.0 * kernel)
        if not self.overlap.c_on_device and not self.unified:
            # The kernel writes C across the link (HDGEMM, section 2.2), and waits for it.
            link = self.chunks * mb * nb * problem.itemsize / machine.pcie_down
            busy["pcie_down"] = link
            kernel = kernel + link
        busy["device"] = kernel
        busy["interpreter"] = self.chunks * machine.operation_seconds
        busy["mult1"] = kernel + busy["interpreter"]
        if self.unified:
            busy["cores"] = kernel
        return busy

    def _padding(self) -> Seconds:
        """Return the elements that the device computes for each element of C.

        Its tiles are padded to its granularity.
        """
        problem, shapes, (gm, gn, _) = self.problem, self.shapes, self.granularity
        rows = _padded(problem.m, np.minimum(shapes.mb, problem.m), gm)
        cols = _padded(problem.n, np.minimum(shapes.nb, problem.n), gn)
        return rows * cols / (problem.m * problem.n)

    def _c_tile(self) -> tuple[Seconds, Seconds]:
        mb, nb = self.shapes.extents(self.problem)["C"]
        m, n = self.problem.m, self.problem.n
        return m / ceil_div(m, mb), n / ceil_div(n, nb)

    def _through(self, operand: Operand) -> Seconds:
        """Return the latency of one tile: its slower stage, then one piece in the other."""
        busy, machine = self.tiles[operand], self.machine
        near, far = ("store2", "store1") if operand == "C" else ("load1", "load2")
        seconds = np.maximum(busy.get(near, 0.0), busy.get(far, 0.0))
        if near in busy and far in busy:
            seconds = seconds + np.minimum(busy[near], busy[far]) / self.pieces[operand]
        return seconds + machine.operation_seconds * (len(busy) > 0)

    def _prologue(self) -> Seconds:
        """Return the seconds until the first step has both its tiles."""
        return self._through("A") + self._through("B")

    def _epilogue(self) -> Seconds:
        """Return the seconds after the last step, in which the last C tile is stored."""
        return self._through("C") * self._rest() * 0.5**self.shapes.halvings

    def _bursts(self, multiply: Seconds, a_loads: Seconds, b_loads: Seconds) -> Seconds:
        """Return the stalls in which a long load of one operand delays loads of the other.

        Loads run in the order of need. While a deep load runs, steps go on only as far as the
        slots hold tiles of the other operand.
        """
        shapes, step = self.shapes, multiply / self.chunks
        stall = 0.0 * multiply
        for operand, loads, others, depth, slots in (
            ("A", a_loads, b_loads, shapes.b_depth, shapes.b_slots),
            ("B", b_loads, a_loads, shapes.a_depth, shapes.a_slots),
        ):
            busy = self.tiles["A" if operand == "A" else "B"]
            seconds = np.maximum(busy.get("load1", 0.0), busy.get("load2", 0.0))
            ahead = np.maximum(slots - 1, 0) * (depth // shapes.kb) * step
            more = np.maximum(0.0, seconds - ahead) * (loads < others)
            stall = stall + more * loads * (self.units - 1)
        return stall
