"""One small Dask cluster of processes for all modules: a process takes a second to start."""

import pytest

from hdgemm.cluster import blocks
from hdgemm.cluster.connection import local_cluster

distributed = pytest.importorskip(
    "distributed", reason="distributed is missing: pip install '.[dev]'"
)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDGEMM_CACHE", str(tmp_path_factory.mktemp("cache")))
        with local_cluster(2, threads=1) as opened:
            yield opened.cluster


@pytest.fixture
def client(cluster):
    with distributed.Client(cluster) as opened:
        yield opened


@pytest.fixture
def many_blocks(monkeypatch):
    """Cut each pool into about eight equal blocks, whatever rates are measured."""
    monkeypatch.setattr(blocks.BlockPool, "_elements", lambda pool, _: max(1.0, pool.total / 8))
