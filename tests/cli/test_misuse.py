"""Misuse of commands: each error has its numbers and a remedy, and names no internal file."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hdgemm.matrices.draft
from hdgemm.cli import serve
from hdgemm.errors import InputError
from hdgemm.matrices.stores import create_scratch
from hdgemm.server.http_server import _listen
from tests.cli.commands import command_line


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in a folder with matrices A, B and C, inside this process."""
    monkeypatch.chdir(tmp_path)
    for name in "ABC":
        np.save(f"{name}.npy", np.random.default_rng(ord(name)).random((8, 8)))
    return command_line(monkeypatch, capsys)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_memory_that_the_machine_does_not_have_is_refused(run, tmp_path, command):
    done = run(command, "--memory", "100000TB", "--data-dir", tmp_path / "data")
    assert done.returncode == 2
    assert "--memory (HDGEMM_MEMORY) is 100 PB, and this machine has" in done.stderr


def test_a_port_in_use_is_refused_with_a_remedy():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError) as refused:
            _listen("127.0.0.1", port)
    assert f":{port}: Address already in use; give another --port (0 takes" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LEASE_SECONDS", "-1", "lease_seconds is '-1': it must be greater than 0"),
        ("LEASE_SECONDS", "1", "lease_seconds is 1, and it is renewed every 2 s (beat_seconds)"),
        ("POLL_SECONDS", "nan", "poll_seconds is 'nan': it must be a finite number"),
        ("MAX_QUEUE", "0", "max_queue is '0': it must be greater than or equal to 1"),
        ("MEMORY", "much", "memory: HDGEMM_MEMORY is 'much': write it like '1.5GB'"),
        ("PUBLIC_URL", "here", "public_url: must look like https://"),
    ],
)
def test_wrong_settings_are_refused_with_their_values(monkeypatch, name, value, words):
    monkeypatch.setenv(f"HDGEMM_{name}", value)
    with pytest.raises(InputError) as refused:
        serve.make_settings()
    assert words in str(refused.value)
    assert "Value error" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("plan lu 1000000000000000000000", "an extent must be less than 2**63, got 1000000000"),
        ("plan lu -5", "-5 is read as an option; extents and sizes are not negative"),
        ("random -5 5 --out R.npy", "-5 is read as an option"),
        ("verify A.npy B.npy C.npy --rounds 100000000", "rounds must be at most 1000, got 1000"),
        ("verify A.npy B.npy C.npy --host-memory 1", "host_memory is '1', which are bytes"),
        ("verify A.npy B.npy C.npy --host-memory 100B", "memory (--host-memory) is 100 B: give"),
        ("token create --name x --quota -1", "--quota is '-1': write it like"),
        ("demo --size much", "--size is 'much': write it like"),
        ("demo --size 40MB --host-memory 9MB --out A.npy", "--out A.npy is no folder: a file"),
        ("profile --quick --out A.npy", "--out A.npy is no folder: a file"),
        ("job submit --process multiply A.npy B.npy", "no process 'multiply': use gemm"),
        ("job submit --process lu_factor A.npy", "no process 'lu_factor': use lu"),
        ("job submit A.npy B.npy C.npy", "gemm takes 2 matrices, got 3"),
        ("job submit --process lu A.npy --set", "see hdgemm job submit --help"),
    ],
)
def test_a_wrong_command_is_refused_in_one_sentence(run, arguments, words):
    done = run(*arguments.split())
    assert done.returncode in {2, 3}
    assert words in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize("name", ["A", "C"])
def test_the_demo_keeps_the_matrices_of_its_folder(run, tmp_path, name):
    for other in {"A", "B", "C"} - {name}:
        (tmp_path / f"{other}.npy").unlink()
    before = (tmp_path / f"{name}.npy").read_bytes()
    done = run("demo", "--size", "40MB", "--host-memory", "9MB", "--out", ".")
    assert done.returncode == 2
    assert f"{name}.npy exists, and the demo would replace and remove it" in done.stderr
    assert (tmp_path / f"{name}.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("first", "second"), [("lu A.npy", "cov A.npy"), ("multiply A.npy B.npy", "lu A.npy")]
)
def test_the_journal_of_another_routine_is_refused_with_a_remedy(run, first, second):
    durable = ("--out", "X.npy", "--checkpoint")
    assert run(*first.split(), *durable).returncode == 0
    done = run(*second.split(), *durable)
    assert done.returncode == 2
    assert f"the journal of another run, of {first.split()[0]}" in done.stderr
    assert "which is finished" in done.stderr
    assert "(--restart) begins again" in done.stderr
    assert run(*second.split(), *durable, "--restart").returncode == 0


def test_an_interrupted_run_with_a_journal_says_that_it_can_go_on(run, monkeypatch):
    def interrupted(*_arguments, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr("hdgemm.linalg.routines.run_routine", interrupted)
    done = run("lu", "A.npy", "--out", "X.npy", "--checkpoint")
    assert (done.returncode, done.stderr) == (
        130,
        "hdgemm: interrupted; the same command goes on with the run\n",
    )


def test_a_full_standard_output_is_named(tmp_path):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hdgemm", "plan", "lu", "10"], cwd=tmp_path, stdout=full,
            stderr=subprocess.PIPE, text=True, timeout=400, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "hdgemm: error: cannot write the output: No space left on device" in done.stderr


def test_a_locale_without_utf_8_takes_any_name(tmp_path):
    environment = {
        **os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii",
    }  # fmt: skip
    name = os.fsencode("é.npy")
    done = subprocess.run(
        [sys.executable, "-m", "hdgemm", "random", "3", "3", "--out", name], cwd=tmp_path,
        env=environment, capture_output=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [name]


def test_a_work_file_without_space_is_called_so(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hdgemm.matrices.draft, "allocate", full)
    with pytest.raises(hdgemm.MatrixIOError) as refused:
        create_scratch(tmp_path, (4, 4), "float64")
    assert f"for a work file in {tmp_path}: No space left" in str(refused.value)
    assert "hdgemm-scratch" not in str(refused.value)


def test_a_journal_in_a_folder_that_may_not_be_written_is_not_named(run, monkeypatch):
    opened = os.open

    def refused(path, *arguments, **named):
        if str(path).endswith(".hdgemm-journal"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *arguments, **named)

    monkeypatch.setattr("os.open", refused)
    done = run("lu", "A.npy", "--out", "X.npy", "--checkpoint")
    assert done.returncode == 2
    assert "cannot keep a journal in the folder" in done.stderr
    assert ".hdgemm-journal" not in done.stderr


def test_matrices_below_groups_are_listed(run):
    h5py = pytest.importorskip("h5py")
    with h5py.File("F.h5", "w") as file:
        file["/g/B"] = np.eye(3)
    done = run("norm", "F.h5::/x")
    assert done.returncode == 2
    assert "has no dataset 'x'; its matrices are: g/B" in done.stderr
