"""Plans of a cluster and their virtual time: a thousand workers, lost ones, a slow storage."""

import json
from random import Random

import pytest

from bench.lossy_cluster import LossyCluster
from hdgemm.cluster._cluster_plan import plan_cluster, useful_extent
from hdgemm.cluster.blocks import Costs
from hdgemm.cluster.virtual_time import VirtualCluster, VirtualWorker


def cluster_of(n, workers, bandwidth=1e12, **lost):
    rates = {"bandwidth": bandwidth, "flops_per_element": 2 * n}
    if lost:
        return LossyCluster((n, n), Costs(k=n), workers, lost, **rates)
    return VirtualCluster((n, n), Costs(k=n), workers, **rates)


@pytest.mark.parametrize("misjudged", [1.0, 3.0])
def test_a_thousand_workers_of_mixed_speed_with_losses_are_balanced(misjudged):
    random, n = Random(1), 1_000_000
    rates = [50e9 * 10 ** random.random() for _ in range(1000)]
    ideal = 2 * n**3 / sum(rates)
    workers = [
        VirtualWorker(
            f"w{i}", rate, expected=rate * misjudged ** random.uniform(-1, 1), most_elements=4e9,
            bandwidth=10e9,
        )
        for i, rate in enumerate(rates)
    ]  # fmt: skip
    lost = {f"w{i}": random.uniform(0, ideal) for i in range(0, 1000, 20)}
    run = cluster_of(n, workers, 200e9, **lost).run()
    assert sum(block.rows * block.cols for block in run.blocks) == n * n
    assert run.efficiency >= 0.90


def test_a_lone_worker_computes_all_and_a_lost_one_nothing_more():
    run = cluster_of(4096, [VirtualWorker("a", 1e11), VirtualWorker("b", 1e11)], b=0.5).run()
    # Both work for half a second, then one alone.
    assert run.perfect_seconds == pytest.approx(2 * 4096**3 / 1e11 - 0.5)
    assert run.seconds > run.perfect_seconds
    assert sum(block.rows * block.cols for block in run.blocks) == 4096**2
    with pytest.raises(ValueError, match="every worker is lost"):
        cluster_of(4096, [VirtualWorker("a", 1e11)], a=0.5).run()


def test_a_shared_storage_limits_all_workers():
    workers = [VirtualWorker(f"{i}", 1e12) for i in range(8)]
    run = cluster_of(40_000, workers, bandwidth=1e9).run()
    assert run.seconds * 1.000001 >= sum(run.bytes_read.values()) / 1e9
    fast = cluster_of(40_000, workers, bandwidth=1e13).run()
    assert fast.seconds < run.seconds / 4


def test_a_plan_says_what_limits_and_where_more_workers_help():
    def plan(n, bandwidth):
        return plan_cluster(
            (n, n, n), "float64", [VirtualWorker(f"{i}", 1e11) for i in range(16)],
            costs=Costs(k=n), bandwidth=bandwidth, memory=10**9, itemsize=8,
            flops_per_element=2 * n,
        )  # fmt: skip

    plenty, little = plan(20_000, 1e12), plan(20_000, 1e9)
    assert plenty.expected_limit == "arithmetic"
    assert little.expected_limit == "storage"
    assert little.bytes_read < plenty.bytes_read
    assert little.useful_extent > 20_000 > plenty.useful_extent
    assert plenty.expected_seconds == pytest.approx(2 * 20_000**3 / 16e11 / plenty.efficiency)
    assert json.loads(plenty.to_json())["tasks"] == plenty.tasks > 16
    assert f"m = n = k = {plenty.useful_extent}" in str(plenty)
    # At the extent that is named, reading and computing take as long.
    assert useful_extent(16e11, 16, 1e9, Costs(k=1), 2) == little.useful_extent
    blocks = (little.useful_extent / (16 * 8) ** 0.5) ** 2
    assert 16 * blocks**0.5 / 1e9 == pytest.approx(2 * blocks / 16e11, rel=0.01)
