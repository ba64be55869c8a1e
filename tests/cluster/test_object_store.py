"""Products of a cluster from and to Zarr arrays in an S3-compatible store on this machine."""

import threading

import numpy as np
import pytest

import hdgemm
from hdgemm.cluster import multiply
from hdgemm.cluster.connection import ClusterError
from hdgemm.durable.journal import read_journal
from hdgemm.errors import CancelledRunError, InputError
from hdgemm.options import Options
from tests.cluster.processes import pieces
from tests.matrices.test_objectstore import bucket, endpoint  # noqa: F401 - fixtures
from tests.reference import assert_close_in_eps

OPTIONS = Options(devices="host", host_memory="128MB")


def test_a_run_that_is_cut_off_goes_on_and_its_array_appears_at_the_end(
    client,
    bucket,  # noqa: F811
    endpoint,  # noqa: F811
    tmp_path,
    monkeypatch,
    many_blocks,
):
    name, _ = bucket
    monkeypatch.chdir(tmp_path)
    client.run(take_environment, store_environment())
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2060, 4)), rng.standard_normal((4, 1030))
    np.save("A.npy", a)
    with hdgemm.create(f"s3://{name}/store.zarr::B", b.shape) as stored:
        stored.write(b)
    out, cancel = f"s3://{name}/store.zarr::C", threading.Event()
    operands = tmp_path / "A.npy", f"s3://{name}/store.zarr::B"
    with pytest.raises(CancelledRunError):
        multiply(*operands, out=out, client=client, options=OPTIONS, cancel=cancel,
                 progress=lambda _: cancel.set())  # fmt: skip
    with pytest.raises(InputError):
        hdgemm.open(out)
    # Workers at another endpoint find no B there.
    client.run(take_environment, store_environment() | {"AWS_ENDPOINT_URL": f"{endpoint}/else"})
    with pytest.raises(ClusterError, match=r"tcp://\S+: cannot open s3://.*::B"):
        multiply(*operands, out=out, client=client, options=OPTIONS)
    client.run(take_environment, store_environment())
    report = multiply(*operands, out=out, client=client, options=OPTIONS)
    assert report.resumption.kept > 0
    with hdgemm.open(out) as c:
        assert_close_in_eps(np.asarray(c), a, b)
    assert multiply(*operands, out=out, client=client, options=OPTIONS).resumption.finished
    [journal] = tmp_path.glob(".*.hdgemm-journal")
    assert sum(rect.area for rect in pieces(journal)) == 2060 * 1030
    records = read_journal(journal)[0]
    blocks = [record["notes"]["block"] for record in records if "done" in record]
    assert all(row % 1024 == col % 1024 == 0 for row, col, *_ in blocks)


def store_environment():
    import os

    return {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}


def take_environment(found):
    import os

    os.environ.update(found, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        os.environ.pop(name, None)
