"""HDGEMM: its strategies on one chip, its products on two chips and the CPUs, and its figures."""

from __future__ import annotations

from itertools import pairwise, product
from statistics import mean
from typing import TYPE_CHECKING, Final

from bench.papers import hd5970
from bench.papers.comparison import Comparison, Speed, figures
from bench.papers.hd5970 import CHIP, CHIPS, CPU, STAGING, Member, Run, run_at_once
from hdgemm.options import STRATEGIES, built_in_options
from hdgemm.pipeline.plan import STAGES, OperandSpec, Problem
from hdgemm.planning.build import build_plan
from hdgemm.planning.case import Case, Limits
from hdgemm.planning.planner import plan_for
from hdgemm.planning.shapes import Shape as Tiling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.pipeline.plan import Plan

#: m, n and k.
Shape = tuple[int, int, int]

#: m, n and k of the detailed figures; the paper's speeds of two chips are for twice this k.
SHAPE: Final = (16384, 16384, 2048)
LADDER: Final = STRATEGIES[:4]
#: The strategy for several devices.
BEST: Final = LADDER[-1]
#: Rows and columns of a work unit, and its blocks of rows.
UNIT: Final = 4096
_BLOCKS: Final = 4
#: Offsets, evenly spread over one work unit, at which a further chip follows the first; every
#: figure of several devices is the mean over them.
_OFFSETS: Final = 8
#: Shares of the CPUs to try, in 64ths of the columns of C: first these, then the neighbours of
#: the best one.
_SHARES: Final = (2, 4, 6, 8, 10, 12)
_NEIGHBOURS: Final = (-1, 1)

#: Steps of the ladder are ratios, speeds are in GFLOP/s; the bandwidth of each stage and the rate
#: of the CPUs are relative to the same alone.
FITTED: Final[Mapping[str, tuple[str, float]]] = {
    "double-buffering": ("double buffering over initial (Figure 6)", 1.16),
    "data-reuse": ("data reuse over double buffering (Figure 6)", 1.18),
    "data-placement": ("data placement over data reuse (Figure 6)", 1.74),
    "one chip": ("one chip, GFLOP/s (section 4.2)", 408.0),
    "two chips": ("two chips, GFLOP/s (section 4.2)", 758.0),
    "two chips and CPU": ("two chips and CPUs, GFLOP/s (section 4.2)", 844.0),
    "store1": ("store1 with two chips (Figure 9)", 0.56),
    "load2": ("load2 with two chips (Figure 9)", 0.89),
    "load1": ("load1 with two chips (Figure 10)", 0.92),
    "store2": ("store2 with two chips (Figure 10)", 0.86),
    "CPU": ("the CPUs beside two chips (Figure 11)", 0.78),
}
#: Parts of times that were not used for the fit.
NOT_FITTED: Final[Mapping[str, tuple[str, float]]] = {
    "mult": ("mult1 in the initial program (Figure 3: more than 0.70)", 0.70),
    "link": ("load2 and store1 among the transfers (Figure 7: more than 0.60)", 0.60),
    "ends": ("prologue and epilogue (section 4.3.1: around 0.03)", 0.03),
    "balance": ("first device's end over the last one's (Figure 12: about 0.99)", 0.99),
}


def plan(strategy: str, shape: Shape) -> Plan:
    """Plan C := A·B + beta·C on one chip, all matrices in RAM."""
    limits = Limits(STAGING, CHIP.limit() or STAGING)
    case = Case(Problem(*shape, reads_c=True), CHIP, strategy, limits)
    return build_plan(case, work_unit_tiling((UNIT, UNIT), strategy, shape[2]))


def work_unit_tiling(unit: tuple[int, int], strategy: str, k: int) -> Tiling:
    """Return the tiling of the paper's work unit (HDGEMM, algorithms 1 to 4).

    A and B of a whole unit are loaded; all strategies but the initial one compute C in blocks.
    """
    rows, cols = unit
    if strategy == "initial":
        return Tiling((rows, cols, k), k, k, (1, 1, 1))
    ahead = 1 if strategy == "double-buffering" else 2
    return Tiling((rows // _BLOCKS, cols, k), k, k, (ahead, ahead, 2), blocks=_BLOCKS)


def climb() -> dict[str, Run]:
    """Run each strategy on one chip."""
    return {
        strategy: run_at_once([Member(CHIP.name, plan(strategy, SHAPE))]) for strategy in LADDER
    }


def bars(shape: Shape) -> list[Run]:
    """Run the best strategy on equal bars of C, one a chip, at every offset."""
    m, n, k = shape
    return _at_offsets([plan(BEST, (m // CHIPS, n, k))] * CHIPS)


def full_size() -> list[Run]:
    """Run a product of the full size on every chip (HDGEMM, section 4.3.2)."""
    return _at_offsets([plan(BEST, SHAPE)] * CHIPS)


def hybrid(shape: Shape) -> list[Run]:
    """Run chips and CPUs at every offset, with the CPUs' share that is fastest."""
    runs = {share: _with_cpu(shape, share) for share in _SHARES}
    first = max(runs, key=lambda share: runs[share].gflops)
    runs |= {first + step: _with_cpu(shape, first + step) for step in _NEIGHBOURS}
    best = max(runs.values(), key=lambda run: run.gflops)
    return _at_offsets([member.plan for member in best.members])


def _with_cpu(shape: Shape, share: int) -> Run:
    """Run with so many 64ths of the columns on the CPUs."""
    m, n, k = shape
    cols = round(share * n / 64 / 64) * 64
    spec = OperandSpec(path="resident")
    problem = Problem(m, cols, k, a=spec, b=spec, c=spec, reads_c=True)
    cpu = plan_for(problem, built_in_options(), CPU, hd5970.CPU_MACHINE)
    return _run([*[plan(BEST, (m // CHIPS, n - cols, k))] * CHIPS, cpu])


def _at_offsets(plans: Sequence[Plan]) -> list[Run]:
    return [_run(plans, (number + 0.5) / _OFFSETS) for number in range(_OFFSETS)]


def _run(plans: Sequence[Plan], offset: float = 0.5) -> Run:
    """Run plans at once; each chip starts `offset` work units after the one before."""
    unit_flops = 2 * UNIT**2 * plans[0].problem.k
    delay = offset * unit_flops / hd5970.MACHINE.flop_rate("float64")
    members = [
        Member(CPU.name, each)
        if each.device == CPU
        else Member(f"{CHIP.name} {number}", each, delay * number)
        for number, each in enumerate(plans)
    ]
    return run_at_once(members)


def compare() -> Comparison:
    """Run everything, and compare with the paper."""
    m, n, k = SHAPE
    ladder, mixed = climb(), hybrid(SHAPE)
    deep = bars((m, n, 2 * k)), hybrid((m, n, 2 * k))
    chips_peak = CHIPS * hd5970.CHIP_PEAK
    all_peak = chips_peak + hd5970.CPU_PEAK
    within = mean(run.busy_rate(CPU.name, "mult1") for run in mixed)
    found = {
        **{new: ladder[new].gflops / ladder[old].gflops for old, new in pairwise(LADDER)},
        "one chip": ladder[BEST].gflops,
        "two chips": mean_gflops(deep[0]),
        "two chips and CPU": mean_gflops(deep[1]),
        **_kept(ladder[BEST], full_size()),
        "CPU": within * 1e9 / hd5970.CPU_RATE,
        **_parts(ladder),
        "balance": mean(run.balance for run in mixed),
    }
    speeds = {
        "ladder": {name: _speed([run], hd5970.CHIP_PEAK) for name, run in ladder.items()},
        "scaling": {
            "one chip": _speed([ladder[BEST]], hd5970.CHIP_PEAK),
            "two chips": _speed(bars(SHAPE), chips_peak),
            "two chips and CPUs": _speed(mixed, all_peak),
        },
        "scaling, twice the depth": {
            "two chips": _speed(deep[0], chips_peak),
            "two chips and CPUs": _speed(deep[1], all_peak),
        },
        "sizes, two chips": {
            f"{side} × {side} × {depth}": _speed([_two_bars(side, depth)], chips_peak)
            for side, depth in product((m, m * 3 // 2, 2 * m), (k * 3 // 4, k, 2 * k))
        },
    }
    return Comparison(
        paper="HDGEMM: a Hybrid DGEMM library on a Heterogeneous Architecture with CPU and GPU",
        rates_from=hd5970.SOURCE,
        speeds=speeds,
        figures=figures({**FITTED, **NOT_FITTED}, found),
    )


def mean_gflops(runs: Sequence[Run]) -> float:
    """Return the mean speed over all offsets."""
    return mean(run.gflops for run in runs)


def _speed(runs: Sequence[Run], peak: float) -> Speed:
    return Speed(mean_gflops(runs), peak / 1e9)


def _two_bars(side: int, depth: int) -> Run:
    return _run([plan(BEST, (side // CHIPS, side, depth))] * CHIPS)


def _kept(alone: Run, together: Sequence[Run]) -> dict[str, float]:
    """Return the rate of each transfer with two chips at work, relative to its rate with one."""
    return {
        stage: mean(run.busy_rate(each.name, stage) for run in together for each in run.members)
        / alone.busy_rate(CHIP.name, stage)
        for stage in STAGES
        if stage != "mult1"
    }


def _parts(ladder: Mapping[str, Run]) -> dict[str, float]:
    """Return parts of the time: of mult1, of the link's transfers, of prologue and epilogue."""
    first, best = ladder["initial"].timeline, ladder[BEST].timeline
    busy = {stage: stats.seconds for stage, stats in best.stages().items() if stage != "mult1"}
    steps = [event for event in best.events if event.stage == "mult1"]
    return {
        "mult": first.stages()["mult1"].seconds / first.seconds,
        "link": (busy["load2"] + busy["store1"]) / sum(busy.values()),
        "ends": (steps[0].start + best.seconds - steps[-1].end) / best.seconds,
    }
