"""One small Dask cluster of processes for each module: processes take a second to start."""

import pytest

distributed = pytest.importorskip(
    "distributed", reason="distributed is missing: pip install '.[dev]'"
)


@pytest.fixture(scope="module")
def cluster(own_cache):
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
    ) as running:
        yield running


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as opened:
        yield opened
