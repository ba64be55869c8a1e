"""The number of copying threads, chosen from measured rates."""

import pytest

from hdgemm.limits import cores
from hdgemm.profiling.copy_threads import copy_rates, copy_threads

RATES = {1: 8e9, 2: 15e9, 4: 28e9, 8: 50e9, 16: 51e9}


@pytest.mark.parametrize(
    ("link", "threads"),
    [(5e9, 1), (8e9, 1), (12e9, 2), (25e9, 4), (48e9, 8), (1e12, 8), (50.5e9, 8)],
)
def test_the_fewest_that_keep_up(link, threads):
    assert copy_threads(RATES, link) == threads


def test_every_count_is_measured_once():
    rates = copy_rates(1 << 20)
    assert min(rates) == 1
    assert max(rates) <= cores()
    assert all(rate > 0 for rate in rates.values())
    assert copy_rates(1 << 20) is rates
    assert copy_threads(rates, 1.0) == 1
