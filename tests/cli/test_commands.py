"""The commands as a user calls them: in a process of their own, files in, files out."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from hdgemm.matrices.random import random_matrix
from tests.cli.commands import command_line
from tests.reference import assert_close_in_eps


def process(*arguments, cwd, timeout=400):
    """Run a command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "hdgemm", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture
def hdgemm(monkeypatch, capsys):
    """Run a command in a folder, inside this process."""
    run = command_line(monkeypatch, capsys)

    def call(*arguments, cwd):
        monkeypatch.chdir(cwd)
        return run(*arguments)

    return call


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(7)
    arrays = {
        "A": rng.standard_normal((70, 50)),
        "B": rng.standard_normal((50, 90)),
        "C": rng.standard_normal((70, 90)),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path, arrays


def failed(result, code, *words):
    assert result.returncode == code, result.stderr
    lines = result.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 2, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_multiply_writes_the_product_and_the_table(files, hdgemm):
    folder, x = files
    result = hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", "--device", "host", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert_close_in_eps(np.load(folder / "D.npy"), x["A"], x["B"])
    assert "mult1" in result.stdout
    assert "bytes moved" in result.stdout
    assert "100.0 %" in result.stderr


def test_multiply_scales_adds_and_transposes(files, hdgemm):
    folder, x = files
    np.save(folder / "At.npy", np.asfortranarray(x["A"].T))
    np.save(folder / "Bt.npy", x["B"].T.copy())
    arguments = ["multiply", "At.npy", "Bt.npy", "--trans-a", "--trans-b", "--quiet"]
    arguments += ["--alpha", "-0.5", "--beta", "2", "--c", "C.npy", "--out", "C.npy"]
    result = hdgemm(*arguments, "--tile", "32,48,16", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert result.stdout == result.stderr == ""
    found = np.load(folder / "C.npy")
    assert_close_in_eps(found, x["A"], x["B"], alpha=-0.5, beta=2.0, c=x["C"])


def test_multiply_takes_the_type_of_c(tmp_path, hdgemm):
    a, b = np.full((3, 4), -128, np.int8), np.full((4, 2), 127, np.int8)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    call = ["multiply", "A.npy", "B.npy", "--out", "D.npy"]
    for given, expected in ([], "int64"), (["--dtype", "float32"], "float32"):
        planned = hdgemm(*call, *given, "--dry-run", "--json", cwd=tmp_path)
        assert planned.returncode == 0, planned.stderr
        arithmetic = "float64" if expected == "int64" else expected
        assert f'"dtype": "{arithmetic}"' in planned.stdout
        assert hdgemm(*call, *given, "--quiet", cwd=tmp_path).returncode == 0
        found = np.load(tmp_path / "D.npy")
        assert found.dtype == expected
        assert (found == -128 * 127 * 4).all()
    extents = hdgemm("plan", "3", "2", "4", "--dtype", "int8", "--json", cwd=tmp_path)
    assert '"load1": 20,' in extents.stdout, extents.stderr
    assert '"store2": 48' in extents.stdout
    failed(hdgemm(*call, "--dtype", "int8", cwd=tmp_path), 2, "int8", "float32")


def test_multiply_leaves_report_trace_and_picture(files, hdgemm):
    folder, _ = files
    pytest.importorskip("matplotlib")
    arguments = ["--report", "r.json", "--trace", "t.json", "--gantt", "g.png", "--verify"]
    arguments += ["--device", "host", "--host-memory", "100MB", "--tile", "32,48,16"]
    result = hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", *arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    report = json.loads((folder / "r.json").read_text())
    assert report["seconds"] > 0
    assert report["gflops"] > 0
    for stage in ("load1", "mult1", "store2"):
        assert report["stages"][stage]["operations"] >= 1
        assert report["stages"][stage]["seconds"] > 0
        assert report["stages"][stage]["bytes"] == report["planned_bytes"][stage]
    assert report["stages"]["store2"]["bytes"] == 70 * 90 * 8
    assert report["peak_memory_bytes"] <= 100_000_000
    assert report["plan"]["host_limit"] == 100_000_000
    assert report["devices"] == ["host"]
    assert "numpy" in report["versions"]
    trace = json.loads((folder / "t.json").read_text())
    assert {entry.get("cat") for entry in trace["traceEvents"]} >= {"load1", "mult1", "store2"}
    assert (folder / "g.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_was_done_is_not_done_again(files, hdgemm):
    folder, x = files
    arguments = ["A.npy", "B.npy", "--out", "D.npy", "--checkpoint", "--device", "host"]
    first = hdgemm("multiply", *arguments, "--tile", "32,48,16", cwd=folder)
    assert first.returncode == 0, first.stderr
    assert_close_in_eps(np.load(folder / "D.npy"), x["A"], x["B"])
    again = hdgemm("multiply", *arguments, "--tile", "32,48,16", "--report", "r.json", cwd=folder)
    assert again.returncode == 0, again.stderr
    report = json.loads((folder / "r.json").read_text())
    assert report["resumption"]["finished"]
    anew = hdgemm("multiply", *arguments, "--restart", "--report", "r.json", cwd=folder)
    assert anew.returncode == 0, anew.stderr
    assert not json.loads((folder / "r.json").read_text())["resumption"]["finished"]
    assert_close_in_eps(np.load(folder / "D.npy"), x["A"], x["B"])


def test_scaling_alone_is_no_error(files, hdgemm):
    pytest.importorskip("matplotlib")
    folder, x = files
    arguments = ["--alpha", "0", "--beta", "-2", "--c", "C.npy", "--gantt", "g.png"]
    result = hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", *arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    np.testing.assert_array_equal(np.load(folder / "D.npy"), -2 * x["C"])


def test_bad_input_exits_with_2(files, hdgemm):
    folder, _ = files
    failed(hdgemm("multiply", "A.npy", "A.npy", "--out", "D.npy", cwd=folder), 2, "50", "70")
    failed(hdgemm("multiply", "A.npy", "no.npy", "--out", "D.npy", cwd=folder), 2, "no.npy")
    failed(
        hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", "--alpha", "x", cwd=folder), 2, "'x'"
    )
    failed(
        hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", "--host-memory", "much", cwd=folder),
        2,
        "much",
        "1.5GB",
    )
    failed(
        hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", "--report", "no/r", cwd=folder),
        2,
        "no",
    )
    failed(
        hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", "--device", "abacus", cwd=folder),
        2,
        "abacus",
    )
    failed(hdgemm("multiply", "A.npy", "B.npy", cwd=folder), 2, "--out")
    failed(hdgemm("divide", cwd=folder), 2, "divide")
    failed(hdgemm("plan", 1, "two", 3, cwd=folder), 2, "two")
    assert not (folder / "D.npy").exists()


def test_what_does_not_fit_exits_with_3(files, hdgemm):
    folder, _ = files
    result = hdgemm(
        "multiply", "A.npy", "B.npy", "--out", "D.npy", "--host-memory", "2KB", cwd=folder
    )
    failed(result, 3, "missing")
    assert not (folder / "D.npy").exists()
    failed(hdgemm("plan", 1000, 1000, 1000, "--host-memory", "2KB", cwd=folder), 3, "missing")


def test_a_warning_is_one_line(tmp_path, hdgemm):
    np.save(tmp_path / "Z.npy", np.diag([1.0, 0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        arguments = ["lu", "Z.npy", "--out", "LU.npy", "--quiet", "--report", "r.json"]
        result = hdgemm(*arguments, cwd=tmp_path)
    assert result.returncode == 0
    text = "Diagonal number 2 is exactly zero. Singular matrix."
    assert result.stderr == f"hdgemm: warning: {text}\n"
    assert json.loads((tmp_path / "r.json").read_text())["warnings"] == [text]


def test_a_truncated_file_is_named(files, hdgemm):
    folder, _ = files
    with (folder / "A.npy").open("r+b") as file:
        file.truncate(1000)
    failed(hdgemm("multiply", "A.npy", "B.npy", "--out", "D.npy", cwd=folder), 2, "A.npy", "1000")


def test_plan_prints_and_touches_nothing(tmp_path, hdgemm):
    arguments = ["plan", 16384, 16384, 16384, "--host-memory", "1.5GB", "--device", "host"]
    result = hdgemm(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for word in ("tiles", "work units", "expected", "load1", "store2", "memory held"):
        assert word in result.stdout
    plan = json.loads(hdgemm(*arguments, "--json", cwd=tmp_path).stdout)
    assert isinstance(plan, dict)
    assert not list(tmp_path.iterdir())


def test_devices_lists_the_host(tmp_path, hdgemm):
    result = hdgemm("devices", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "host" in result.stdout
    found = json.loads(hdgemm("devices", "--json", cwd=tmp_path).stdout)
    host = next(device for device in found if device["name"] == "host")
    assert host["usable"]
    assert host["memory_bytes"] > 0


def test_random_and_verify(tmp_path, hdgemm):
    for name, shape, seed in (("A", (40, 30), 1), ("B", (30, 20), 2)):
        result = hdgemm("random", *shape, "--seed", seed, "--out", f"{name}.npy", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert np.load(tmp_path / f"{name}.npy").shape == shape
    c = np.load(tmp_path / "A.npy") @ np.load(tmp_path / "B.npy")
    np.save(tmp_path / "C.npy", c)
    assert hdgemm("verify", "A.npy", "B.npy", "C.npy", cwd=tmp_path).returncode == 0
    c[3, 4] += 1e-3
    np.save(tmp_path / "C.npy", c)
    wrong = hdgemm("verify", "A.npy", "B.npy", "C.npy", cwd=tmp_path)
    assert wrong.returncode == 1
    assert "Traceback" not in wrong.stderr
    failed(hdgemm("random", "--out", "D.npy", "--", -1, 3, cwd=tmp_path), 2, "-1")


def test_ctrl_c_exits_with_130_and_leaves_no_product(tmp_path):
    n = 2048
    for seed, name in enumerate("AB"):
        random_matrix(tmp_path / f"{name}.npy", n, n, seed)
    # Small tiles make it slow enough to be caught in the middle.
    options = ["--device", "host", "--tile", "64,64,64", "--host-memory", "50MB"]
    arguments = ["multiply", "A.npy", "B.npy", "--out", "C.npy", *options]
    running = subprocess.Popen(
        [sys.executable, "-m", "hdgemm", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = running.stderr.readline()  # the first progress line: it runs
    time.sleep(0.1)
    os.kill(running.pid, signal.SIGINT)
    _, rest = running.communicate(timeout=240)
    assert running.returncode == 130, line + rest
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert not (tmp_path / "C.npy").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.npy", "B.npy"]


#: Writes, reads and misses a file of some name by commands of one process.
IN_TURN = """
import pathlib, sys
from hdgemm.cli.app import main
name, codes = sys.argv[1], []
for words in (
    ["multiply", "A.npy", "B.npy", "--out", name, "--checkpoint"],
    ["verify", "A.npy", "B.npy", name],
    ["verify", "A.npy", "B.npy", "missing" + name],
):
    print("missing" if codes else words[0], file=sys.stderr)
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code)
pathlib.Path("codes").write_text(" ".join(map(str, codes)))
sys.exit(codes[-1])
"""


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_file_names_that_the_terminal_cannot_show(files, monkeypatch, encoding):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    folder, _ = files
    name = os.fsdecode(b"caf\xe9.npy")
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, name], cwd=folder, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    assert (folder / "codes").read_text() == "0 0 2", done.stderr
    done.stderr = done.stderr.rpartition("missing\n")[2]
    failed(done, 2, "No such file")


def test_without_a_command_the_help_is_shown(tmp_path):
    result = process(cwd=tmp_path)
    assert result.returncode == 0
    for word in ("multiply", "plan", "Linear algebra:", "cholesky", "Job service:", "serve"):
        assert word in result.stdout
    assert "..." not in result.stdout.partition("Commands:")[2], "a summary is cut"


def test_demo_does_the_whole_job(tmp_path):
    pytest.importorskip("matplotlib")
    size = ("--size", "40MB", "--host-memory", "9MB")
    result = process("demo", *size, "--out", "demo", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for word in ("mult1", "as planned", "peak memory", "of in-RAM BLAS", "verified"):
        assert word in result.stdout
    left = sorted(path.name for path in (tmp_path / "demo").iterdir())
    assert left == ["gantt.png", "report.json", "trace.json"]
    report = json.loads((tmp_path / "demo" / "report.json").read_text())
    assert report["in_ram_blas"]["share"] > 0
    # BLAS keeps buffers of its own, a few megabytes for each of its threads.
    assert report["peak_memory_bytes"] <= 9_000_000 + 8_000_000 * (os.cpu_count() or 1)
    failed(process("demo", "--size", "30MB", "--host-memory", "10MB", cwd=tmp_path), 2, "4 times")


@pytest.mark.parametrize(("out", "library"), [("bad.h5::X", "h5py"), ("bad.zarr::D", "zarr")])
def test_a_dry_run_refuses_the_store_that_the_product_refuses(tmp_path, hdgemm, out, library):
    pytest.importorskip(library)
    np.save(tmp_path / "A.npy", np.eye(4))
    (tmp_path / "bad.h5").write_text("no HDF5")
    (tmp_path / "bad.zarr" / "D").mkdir(parents=True)
    for more in ((), ("--dry-run",)):
        done = hdgemm("multiply", "A.npy", "A.npy", "--out", out, *more, cwd=tmp_path)
        assert done.returncode == 2
        assert "bad" in done.stderr
