"""Products of a cluster from storage to storage, in every format that workers can share."""

import asyncio
import json

import distributed
import numpy as np
import pytest
from typer.testing import CliRunner

import hdgemm
from hdgemm.cli.app import app
from hdgemm.cluster import multiply, plan as cluster_plan
from hdgemm.cluster._product import quantum_of
from hdgemm.durable.audit import audit
from hdgemm.errors import InputError
from hdgemm.options import Options
from tests.cluster.processes import all_begin
from tests.reference import assert_close_in_eps, op

OPTIONS = Options(devices="host", host_memory="64MB")


@pytest.fixture
def case(tmp_path):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((130, 90)), rng.standard_normal((90, 140))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    return tmp_path, a, b


def run(client, case, out, **arguments):
    folder, *_ = case
    arguments = {"options": OPTIONS, "out": out} | arguments
    a, b = arguments.pop("a", folder / "A.npy"), arguments.pop("b", folder / "B.npy")
    return multiply(a, b, client=client, **arguments)


def test_files_and_one_report(client, case, many_blocks):
    folder, a, b = case
    shown, events = [], []
    with all_begin(client, folder / "begun"):
        report = run(client, case, folder / "C.npy", alpha=1.5, progress=shown.append,
                     observer=events.append)  # fmt: skip
    assert_close_in_eps(np.load(folder / "C.npy"), a, b, alpha=1.5)
    assert report.stages["mult1"].flops == 2 * 130 * 140 * 90
    assert report.moved_bytes["store2"] == 130 * 140 * 8
    assert set(report.split.shares) == set(report.devices)
    assert sum(share.elements for share in report.split.shares.values()) == 130 * 140
    assert len(report.devices) == 2
    assert {event.device for event in report.timeline.events} == set(report.devices)
    assert shown[-1].percent == pytest.approx(100)
    tiles = shown[-1].tiles
    assert set("".join(tiles.rows)) == {"a", "b"}
    assert set(tiles.devices) == set(report.devices)
    assert sum(event.flops for event in events) == 2 * 130 * 140 * 90
    found = audit(folder / "C.npy")
    assert found.passed
    assert found.pieces == report.resumption.tiles
    report.to_json()


def test_a_second_call_finds_it_finished(client, case):
    folder, *_ = case
    run(client, case, folder / "C.npy")
    before = (folder / "C.npy").stat().st_mtime_ns
    report = run(client, case, folder / "C.npy")
    assert (folder / "C.npy").stat().st_mtime_ns == before
    assert report.resumption.finished
    assert not report.stages


def test_views_transposes_and_an_old_c(client, case):
    folder, a, b = case
    c = np.random.default_rng(4).standard_normal((90, 90))
    np.save(folder / "C.npy", c)
    with hdgemm.open(folder / "A.npy") as left, hdgemm.open(folder / "B.npy") as right:
        run(client, case, folder / "C.npy", a=left[:60, :], b=right[:60, :90].T, trans_a=1,
            trans_b=2, beta=-0.5, c=folder / "C.npy")  # fmt: skip
    left, right = op(a[:60], 1), op(b[:60, :90].T, 2)
    assert_close_in_eps(np.load(folder / "C.npy"), left, right, beta=-0.5, c=c)


@pytest.mark.parametrize(
    "out", ["C.zarr::group/C", "C.bin::130x140:complex64:F:100", "C.h5::/group/C"]
)
def test_formats_of_c(client, case, out, many_blocks):
    folder, a, b = case
    a, b = a.astype("complex64"), (b + 1j * b[::-1]).astype("complex64")
    with hdgemm.create(f"{folder}/A.h5::/A", a.shape, a.dtype) as m:
        m.write(a)
    with hdgemm.create(f"{folder}/B.zarr::B", b.shape, b.dtype) as m:
        m.write(b)
    run(client, case, f"{folder}/{out}", a=f"{folder}/A.h5::/A", b=f"{folder}/B.zarr::B")
    with hdgemm.open(f"{folder}/{out}") as c:
        assert_close_in_eps(np.asarray(c), a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_workers_convert_low_precision(client, case, dtype):
    folder, *_ = case
    pytest.importorskip("ml_dtypes")
    a, b = (np.random.default_rng(5).integers(-3, 4, shape) for shape in ((30, 20), (20, 40)))
    np.save(folder / "A.npy", a.astype(dtype))
    np.save(folder / "B.npy", b.astype(dtype))
    run(client, case, folder / "C.npy")
    c = np.load(folder / "C.npy")
    np.testing.assert_array_equal(c, a @ b)
    assert c.dtype == hdgemm.matmul(folder / "A.npy", folder / "B.npy").dtype


def test_integers_are_exact_or_refused(client, case, many_blocks):
    folder, *_ = case
    a, b = (np.full((30, 30), x, np.int64) for x in (2**23 + 1, 2**24 + 1))
    np.save(folder / "A.npy", a)
    np.save(folder / "B.npy", b)
    run(client, case, folder / "C.npy")
    c = np.load(folder / "C.npy")
    assert c.dtype == np.int64
    np.testing.assert_array_equal(c, a @ b)
    np.save(folder / "B.npy", b << 2)
    with pytest.raises(InputError, match="2\\^53"):
        run(client, case, folder / "D.npy")
    assert not (folder / "D.npy").exists()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
def test_the_caller_chooses_the_dtype(client, case, many_blocks, dtype):
    folder, *_ = case
    a, b = (np.random.default_rng(5).integers(-9, 9, shape) for shape in ((50, 40), (40, 60)))
    np.save(folder / "A.npy", a.astype(np.int16))
    np.save(folder / "B.npy", b)
    if dtype == "float32":
        np.save(folder / "B.npy", b.astype(np.float16))
        np.save(folder / "A.npy", a.astype(np.float16))
    planned = cluster_plan(folder / "A.npy", folder / "B.npy", out=folder / "C.npy", dtype=dtype,
                           client=client, options=OPTIONS)  # fmt: skip
    assert planned.dtype == ("float64" if dtype == "int64" else dtype)
    run(client, case, folder / "C.npy", dtype=dtype)
    c = np.load(folder / "C.npy")
    assert c.dtype == dtype
    np.testing.assert_array_equal(c, a @ b)


def test_a_dtype_that_cannot_hold_the_product_is_refused(client, case):
    folder, *_ = case
    for dtype, message in (("int64", "products A·B of integers"), ("int8", "int8")):
        with pytest.raises(InputError, match=message):
            run(client, case, folder / "C.npy", dtype=dtype)
    assert not (folder / "C.npy").exists()


def test_a_matrix_that_is_overwritten(client, case):
    folder, a, b = case
    with hdgemm.create(folder / "C.npy", (130, 140), order="F") as c:
        run(client, case, c)
        assert_close_in_eps(np.asarray(c), a, b)


def test_the_command_line(cluster, case):
    folder, a, b = case
    where = ["--cluster", cluster.scheduler_address]
    files = [f"{folder}/A.npy", f"{folder}/B.npy", "--out", f"{folder}/C.npy"]
    planned = CliRunner().invoke(app, ["plan", *files, *where, "--storage", "2GB"])
    assert planned.exit_code == 0, planned.output
    assert "workers: 2" in planned.output
    assert "2.00 GB/s for all" in planned.output
    extents = CliRunner().invoke(app, ["plan", "130", "140", "90", *where, "--json"])
    assert extents.exit_code == 0, extents.output
    shape = json.loads(extents.stdout)
    assert (shape["m"], shape["n"], shape["k"], shape["workers"]) == (130, 140, 90, 2)
    assert shape["bytes_read"] >= shape["most_bytes_read"] > 0
    # The file that a scheduler writes names it, too.
    scheduler = folder / "scheduler.json"
    scheduler.write_text(json.dumps({"address": cluster.scheduler_address}))
    where = ["--cluster", f"{scheduler}"]
    run = CliRunner().invoke(app, ["multiply", *files, *where, "--json", "--alpha", "2",
                                   "--tilemap", f"{folder}/t.png", "--gantt", f"{folder}/g.png",
                                   "--trace", f"{folder}/t.json"])  # fmt: skip
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["plan"]["workers"] >= 1
    assert all((folder / name).stat().st_size for name in ("t.png", "g.png", "t.json"))
    assert "Dask's dashboard: http" in run.stderr
    assert_close_in_eps(np.load(folder / "C.npy"), a, b, alpha=2.0)


def test_the_command_line_chooses_the_dtype(cluster, case):
    folder, *_ = case
    a, b = (np.random.default_rng(6).integers(-9, 9, shape) for shape in ((20, 30), (30, 10)))
    np.save(folder / "A.npy", a.astype(np.int8))
    np.save(folder / "B.npy", b.astype(np.int8))
    files = [f"{folder}/A.npy", f"{folder}/B.npy", "--out", f"{folder}/C.npy"]
    for dtype in ("int64", "float64"):
        words = ["--cluster", cluster.scheduler_address, "--dtype", dtype, "--quiet"]
        planned = CliRunner().invoke(app, ["multiply", *files, *words, "--dry-run", "--json"])
        assert json.loads(planned.stdout)["dtype"] == "float64", planned.output
        done = CliRunner().invoke(app, ["multiply", *files, *words, "--restart"])
        assert done.exit_code == 0, done.output
        c = np.load(folder / "C.npy")
        assert c.dtype == dtype
        np.testing.assert_array_equal(c, a @ b)


def test_nothing_to_multiply_needs_no_worker(client, case):
    folder, *_ = case
    run(client, case, folder / "C.npy", alpha=0)
    assert not np.load(folder / "C.npy").any()


def test_each_block_can_be_checked(client, case):
    folder, a, b = case
    for check in (True, "tiles"):
        options = Options(devices="host", host_memory="64MB", verify=check)
        run(client, case, folder / "C.npy", options=options, restart=True)
        assert_close_in_eps(np.load(folder / "C.npy"), a, b)


@pytest.mark.parametrize(
    ("out", "quantum"),
    [("C.npy", (1, 512)), ("odd.npy", (1, 1)), ("C.zarr", (1024, 1024)),
     ("C.bin::8x1024:float32:8", (1, 1))],
)  # fmt: skip
def test_blocks_share_no_chunk_and_no_page_of_a_row(tmp_path, out, quantum):
    cols = 1000 if "odd" in out else 2048 if "zarr" in out else 1024
    shape, dtype = (8 if "zarr" not in out else 2048, cols), "f4" if "bin" in out else "f8"
    with hdgemm.create(f"{tmp_path}/{out}", shape, dtype) as c:
        assert quantum_of(c.operand.matrix) == quantum


def test_an_asynchronous_client_is_refused(client, case):
    folder, *_ = case

    async def call():
        async with distributed.Client(client.scheduler.address, asynchronous=True) as opened:
            with pytest.raises(InputError, match="client is asynchronous"):
                run(opened, case, folder / "C.npy")
            with (
                pytest.raises(InputError, match="client is asynchronous"),
                hdgemm.cluster.row_passes(opened),
            ):
                pass
            await asyncio.to_thread(run, client, case, folder / "C.npy")

    asyncio.run(call())
    assert (folder / "C.npy").exists()


def test_what_other_machines_cannot_reach_is_refused(client, case):
    folder, a, _b = case
    out = folder / "C.npy"
    with pytest.raises(InputError, match=r"A \(array\) lies in this process"):
        run(client, case, out, a=a)
    with pytest.raises(InputError, match="out as a path"):
        run(client, case, np.zeros((130, 140)))
    with pytest.raises(InputError, match="always keeps a journal"):
        run(client, case, out, checkpoint=False)
    with pytest.raises(InputError, match=r"client must be a distributed\.Client, got str"):
        run("tcp://127.0.0.1:1", case, out)
    c = hdgemm.create(folder / "D.npy", (130, 140))
    with c, pytest.raises(InputError, match="cannot update C in place"):
        run(client, case, c, c=c, beta=1.0)
    assert sorted(path.name for path in folder.iterdir()) == ["A.npy", "B.npy", "D.npy"]
