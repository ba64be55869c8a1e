"""Zarr arrays in an S3-compatible store on this machine: operands and results by URL."""

import http.server
import json
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import hdgemm
from hdgemm.cli.app import app
from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices.location import parse_location
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.matrices.stores import create_matrix
from hdgemm.options import Options

zarr = pytest.importorskip("zarr")
obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install '.[dev]'")
server = pytest.importorskip("moto.server", reason="moto is not installed: pip install '.[dev]'")

TILED = Options(devices="host", tile=(30, 28, 40), host_memory="64MB")


@pytest.fixture(scope="module")
def endpoint():
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch):
    """A new bucket of a store that the variables of the environment lead to."""
    boto3 = pytest.importorskip("boto3")
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "local", "AWS_REGION": "us-east-1",
        "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    client = boto3.client("s3", endpoint_url=endpoint)
    name = f"matrices-{np.random.default_rng().integers(1 << 40)}"
    client.create_bucket(Bucket=name)
    return name, client


def store_of(bucket, prefix):
    made = obstore.store.S3Store(bucket, prefix=prefix, client_options={"allow_http": True})
    return zarr.storage.ObjectStore(made)


def put(bucket, prefix, name, x, **layout):
    array = zarr.create_array(
        store=store_of(bucket, prefix), name=name, shape=x.shape, dtype=x.dtype, **layout
    )
    array[:] = x
    return array


def keys(client, bucket):
    return {entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", [])}


@pytest.fixture
def operands():
    rng = np.random.default_rng(5)
    return rng.standard_normal((90, 110)), rng.standard_normal((110, 70))


def assert_close(c, a, b):
    bound = 4 * a.shape[1] * np.finfo(float).eps * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(c - a @ b) <= bound)


@pytest.mark.parametrize("item", ["", "::group/C"])
def test_from_store_to_store(bucket, operands, item):
    name, client = bucket
    a, b = operands
    put(name, "in.zarr", "A", a, chunks=(32, 32))
    put(name, "in.zarr", "B", b, chunks=(40, 70), compressors=None)
    out = f"s3://{name}/out.zarr{item}"
    returned = hdgemm.matmul(
        f"s3://{name}/in.zarr::A", f"s3://{name}/in.zarr::B", out=out, options=TILED
    )
    assert isinstance(returned, StoredMatrix)
    assert_close(np.asarray(returned), a, b)
    c = zarr.open_array(store_of(name, "out.zarr"), path=item.strip(":"), mode="r")
    assert_close(c[:], a, b)
    assert hdgemm.verify(a, b, out).passed
    with pytest.raises(InputError, match="cannot replace an array"):
        hdgemm.matmul(a, b, out=out, options=TILED)
    assert len(keys(client, name)) > 8


def test_a_chunk_that_vanishes_in_the_run_is_an_error(bucket, operands):
    """The library reads a missing chunk as zeros."""
    name, client = bucket
    a, b = operands
    put(name, "in.zarr", "B", b, chunks=(40, 35))

    def lose(_):
        client.delete_object(Bucket=name, Key="in.zarr/B/c/2/1")

    with pytest.raises(MatrixIOError, match=r"B \(.*in\.zarr.*\) .* during the run"):
        hdgemm.multiply(
            a, f"s3://{name}/in.zarr::B", out=np.empty((90, 70)), options=TILED, progress=lose
        )


def test_a_result_is_there_when_it_is_whole(bucket, operands):
    name, client = bucket
    where = f"s3://{name}/c.zarr"
    with create_matrix(where, (90, 70), "f8") as draft:
        draft.matrix.write(0, 0, np.zeros((90, 70)))
        assert keys(client, name) == {"c.zarr/c/0/0", "c.zarr/.hdgemm-claim"}
        with pytest.raises(InputError, match="cannot open"):
            hdgemm.verify(*operands, where)
    assert keys(client, name) == set()


def gone(bucket_name, item, write):
    """Begin an array in a process that is killed."""
    with create_matrix(f"s3://{bucket_name}/{item}", (90, 70), "f8") as draft:
        draft.matrix.write(0, 0, np.full((90, 70), 3.0))
        write.send("written")
        os.kill(os.getpid(), signal.SIGKILL)


def test_one_run_writes_a_new_array_at_a_time(bucket):
    name, client = bucket
    where = f"s3://{name}/x.zarr::D"
    with create_matrix(where, (90, 70), "f8") as first:
        with pytest.raises(InputError, match=f"is written by another run: process {os.getpid()}"):
            create_matrix(where, (90, 70), "f8")
        first.matrix.write(0, 0, np.ones((90, 70)))
        first.publish()
    assert np.all(np.asarray(hdgemm.open(where)) == 1)
    assert keys(client, name) == {"x.zarr/D/zarr.json", "x.zarr/D/c/0/0"}


def test_a_cancelled_run_leaves_the_array_of_another_run(bucket):
    """The other run was begun although this one is alive: its claim was removed by hand."""
    name, client = bucket
    where = f"s3://{name}/x.zarr::D"
    with create_matrix(where, (90, 70), "f8") as cancelled:
        cancelled.matrix.write(0, 0, np.zeros((90, 70)))
        for key in keys(client, name):
            client.delete_object(Bucket=name, Key=key)
        with create_matrix(where, (90, 70), "f8") as other:
            other.matrix.write(0, 0, np.ones((90, 70)))
            with pytest.raises(MatrixIOError, match="its claim was removed during the run"):
                cancelled.publish()
            cancelled.discard()
            other.publish()
    assert np.all(np.asarray(hdgemm.open(where)) == 1)


def test_an_array_that_appears_in_the_run_is_not_replaced(bucket):
    name, client = bucket
    where = f"s3://{name}/x.zarr::D"
    with create_matrix(where, (90, 70), "f8") as draft:
        draft.matrix.write(0, 0, np.zeros((90, 70)))
        put(name, "x.zarr", "D", np.ones((50, 40)), chunks=(25, 40))
        with pytest.raises(MatrixIOError, match="another array has got this name"):
            draft.publish()
    assert np.all(np.asarray(hdgemm.open(where)) == 1)
    assert "x.zarr/D/.hdgemm-claim" not in keys(client, name)


def test_chunks_of_a_killed_run_are_replaced(bucket, operands):
    name, client = bucket
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=gone, args=(name, "x.zarr::D", theirs)
    )
    process.start()
    process.join()
    assert ours.recv() == "written"
    assert keys(client, name) == {"x.zarr/D/.hdgemm-claim", "x.zarr/D/c/0/0"}
    where = f"s3://{name}/x.zarr::D"
    hdgemm.matmul(*operands, out=where, options=TILED)
    assert_close(np.asarray(hdgemm.open(where)), *operands)
    assert keys(client, name) == {"x.zarr/D/zarr.json", "x.zarr/D/c/0/0"}


def test_the_claim_of_a_run_elsewhere_is_kept(bucket):
    name, client = bucket
    claim = json.dumps({"run": "1", "host": "far", "process": 7, "machine": "x", "started": "1"})
    client.put_object(Bucket=name, Key="x.zarr/D/.hdgemm-claim", Body=claim)
    client.put_object(Bucket=name, Key="x.zarr/D/c/0/0", Body=b"theirs")
    with pytest.raises(InputError, match=r"process 7 on far.*delete the array's objects"):
        create_matrix(f"s3://{name}/x.zarr::D", (90, 70), "f8")
    client.delete_object(Bucket=name, Key="x.zarr/D/.hdgemm-claim")
    with pytest.raises(InputError, match="chunks of an array without metadata"):
        create_matrix(f"s3://{name}/x.zarr::D", (90, 70), "f8")
    assert keys(client, name) == {"x.zarr/D/c/0/0"}


def test_a_durable_run_inherits_its_claim(bucket, tmp_path):
    name, client = bucket
    where = f"s3://{name}/x.zarr::D"
    draft = create_matrix(where, (90, 70), "f8", tmp_path / "journal")
    draft.matrix.write(0, 0, np.ones((90, 70)))
    with pytest.raises(InputError, match=f"go on with its journal {tmp_path}/journal"):
        create_matrix(where, (90, 70), "f8", tmp_path / "other")
    with create_matrix(where, (90, 70), "f8", tmp_path / "journal") as resumed:
        resumed.publish()
    draft.discard()
    assert np.all(np.asarray(hdgemm.open(where)) == 1)
    assert keys(client, name) == {"x.zarr/D/zarr.json", "x.zarr/D/c/0/0"}


class Forbidding(http.server.BaseHTTPRequestHandler):
    """Answers with an array's metadata, and with a status for each of its chunks."""

    def do_GET(self):
        metadata = self.path.endswith("/zarr.json")
        body = self.server.metadata if metadata else b""
        status = self.server.status if "/c/" in self.path else 404
        self.send_response(200 if metadata else status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Print nothing."""


@pytest.mark.parametrize("status", [401, 403])
def test_a_chunk_that_may_not_be_read_is_an_error(bucket, monkeypatch, tmp_path, status):
    zarr.create_array(tmp_path / "x.zarr", shape=(20, 20), dtype="f8")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as running:
        running.metadata, running.status = (tmp_path / "x.zarr/zarr.json").read_bytes(), status
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{running.server_port}")
            with pytest.raises(MatrixIOError, match="cannot read rows 0:20"):
                hdgemm.open("s3://b/x.zarr").read()
        finally:
            running.shutdown()
            thread.join()


def test_arrays_that_the_caller_has_open(bucket, operands):
    name, _ = bucket
    a, b = operands
    left = put(name, "x.zarr", "A", a, chunks=(32, 32))
    out = put(name, "x.zarr", "C", np.zeros((90, 70)), chunks=(30, 28))
    hdgemm.matmul(left, b, out=out, options=TILED)
    assert_close(out[:], a, b)


def test_the_command_line_takes_urls(bucket, operands):
    name, _ = bucket
    a, b = operands
    put(name, "x.zarr", "A", a, chunks=(32, 32))
    put(name, "x.zarr", "B", b, chunks=(32, 32))
    there = f"s3://{name}/x.zarr::"
    command = ["multiply", there + "A", there + "B", "--out", there + "C", "--verify", "--quiet"]
    result = CliRunner().invoke(app, [*command, "--device", "host", "--host-memory", "64MB"])
    assert result.exit_code == 0, result.output
    assert_close(zarr.open_array(store_of(name, "x.zarr"), path="C", mode="r")[:], a, b)


def test_what_is_not_there_is_named(bucket, operands):
    name, _ = bucket
    a, b = operands
    with pytest.raises(InputError, match=f"cannot open s3://{name}/x.zarr::A"):
        hdgemm.matmul(f"s3://{name}/x.zarr::A", b, options=TILED)
    put(name, "x.zarr", "A", a, chunks=(32, 32))
    with pytest.raises(InputError, match="out is a"):
        hdgemm.matmul(f"s3://{name}/x.zarr::A", b, out=f"s3://{name}/x.zarr::A", options=TILED)


@pytest.mark.parametrize(
    "text", ["s3://b/x.zarr::g/A", "s3:/b/x.zarr::g/A", "s3://b/x.zarr/::/g/A"]
)
def test_names(text):
    place = parse_location(text)
    assert (place.url, place.item, place.format) == ("s3://b/x.zarr", "g/A", "zarr")
    assert str(place) == "s3://b/x.zarr::g/A"
    assert parse_location("s3:x.npy").format == "npy"
