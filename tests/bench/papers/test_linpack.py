"""LINPACK in virtual time: the figures of Jo et al., and what the model must keep."""

from dataclasses import replace

import pytest

from bench.papers.linpack import CHUNDOONG, OPTIMISATIONS, compare, extrapolated, run_linpack

#: Figures 3 and 4: height of A, NB, and percent of factorisation, DTRSM and DGEMM.
OPERATIONS = [
    (800_000, 2000, "0.86", "0.86", "98.28"),
    (600_000, 2000, "1.14", "1.14", "97.72"),
    (400_000, 2000, "1.69", "1.69", "96.62"),
    (200_000, 2000, "3.27", "3.27", "93.46"),
    (600_000, 4000, "2.23", "2.23", "95.54"),
    (600_000, 3000, "1.69", "1.69", "96.62"),
    (600_000, 1000, "0.58", "0.58", "98.85"),
]


@pytest.mark.parametrize(("m", "nb", "factorization", "dtrsm", "dgemm"), OPERATIONS)
def test_operations_are_those_of_figures_3_and_4(m, nb, factorization, dtrsm, dgemm):
    p = 7
    # Section 2.2: one factorising node, one iteration.
    counts = nb**2 * m / p, nb**2 * (m + 1) / p, m * (m + 1) * (2 * nb + 2) / p**2
    parts = [f"{100 * count / sum(counts):.2f}" for count in counts]
    assert parts == [factorization, dtrsm, dgemm]


def test_the_papers_figures_are_within_five_percent():
    compared = compare()
    assert len(compared.figures) == 13
    for row in compared.figures:
        assert abs(row.off) < 0.05, row
    speeds = [speed.gflops for speed in compared.speeds["a node, optimisations"].values()]
    assert speeds == sorted(speeds)


def test_the_baseline_never_hides_the_cpus_and_a_run_lasts_as_long_as_its_longer_lane():
    run = run_linpack(CHUNDOONG)
    assert run.hidden()[0] < 0.01
    assert run.seconds >= max(run.cpu_seconds, sum(each.gpu for each in run.iterations)) * 0.99
    assert sum(each.seconds for each in run.iterations) == pytest.approx(run.seconds)


def test_without_cpu_time_the_update_alone_remains():
    free = replace(CHUNDOONG, panel=1e30, link=1e30, swap=1e30)
    run = run_linpack(free, OPTIMISATIONS)
    assert run.seconds == pytest.approx(sum(each.gpu for each in run.iterations), rel=1e-6)
    assert run.hidden()[0] == 1.0


def test_a_thousand_nodes_need_long_broadcasts():
    ring, long = (extrapolated(CHUNDOONG, (25, 40), long=each) for each in (False, True))
    assert ring.gflops < CHUNDOONG.dgemm / 1e9 / 2
    assert 0.9 < long.gflops / run_linpack(CHUNDOONG, OPTIMISATIONS).gflops < 1.2
