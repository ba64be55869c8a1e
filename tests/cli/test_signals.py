"""SIGTERM, SIGHUP and Ctrl-C during commands of linear algebra: no unfinished file is left."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.child import HEARS_SIGNALS
from tests.linalg.matrices import positive_definite

#: `hdgemm`, which gets a signal when it stores the first elements of a result.
CODE = f"""
{HEARS_SIGNALS}
import sys
from hdgemm.cli.app import main
from hdgemm.matrices.filematrix import FileMatrix

write, number = FileMatrix.write, int(sys.argv.pop(1))

def store(self, *rectangle):
    signal.raise_signal(number)
    write(self, *rectangle)

FileMatrix.write = store
main()
"""
#: `hdgemm`, which gets a signal while it plans, where a library swallows the first error.
SWALLOWED = f"""
{HEARS_SIGNALS}
import contextlib, sys, time
from hdgemm.cli.app import main
from importlib import import_module

number = int(sys.argv.pop(1))

def plan(*arguments, **named):
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)
    time.sleep(60)

import_module("hdgemm.linalg.lu").plan_for = plan
main()
"""
#: `hdgemm`, which gets a signal while it imports its commands.
IMPORTING = f"""
{HEARS_SIGNALS}
import sys
from hdgemm.cli import main

class Interrupt:
    def find_spec(name, path, target=None):
        if name == "hdgemm.cli.app":
            signal.raise_signal(number)

number = int(sys.argv.pop(1))
sys.meta_path.insert(0, Interrupt)
main()
"""
N = 60
SLABS = ("--tile", "1,7,3", "--host-memory", "40MB")


def run(folder, number, *arguments, code=CODE):
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", code, str(int(number)), *arguments, *SLABS], cwd=folder,
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip


def test_a_command_that_is_interrupted_while_it_starts_says_so(tmp_path):
    done = run(tmp_path, signal.SIGINT, "det", "S.npy", code=IMPORTING)
    assert (done.returncode, done.stderr) == (130, "hdgemm: interrupted\n")


@pytest.fixture
def matrices(tmp_path):
    np.save(tmp_path / "S.npy", np.asfortranarray(positive_definite(N, "float64")))
    np.save(tmp_path / "B.npy", np.ones((N, 2)))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        (("cholesky", "S.npy", "--out", "C.npy"), signal.SIGHUP, 129),
        (("lu", "S.npy", "--out", "C.npy"), signal.SIGTERM, 143),
        (("qr", "S.npy", "--out", "C.npy", "--mode", "raw"), signal.SIGINT, 130),
        (("solve", "S.npy", "B.npy", "--out", "C.npy"), signal.SIGTERM, 143),
    ],
)
def test_a_stopped_command_leaves_nothing(matrices, command, number, code):
    before = {path.name: path.read_bytes() for path in matrices.iterdir()}
    done = run(matrices, number, *command)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in matrices.iterdir()} == before


def test_a_signal_that_a_library_swallows_is_heard(matrices):
    before = sorted(path.name for path in matrices.iterdir())
    done = run(matrices, signal.SIGTERM, "lu", "S.npy", "--out", "C.npy", code=SWALLOWED)
    assert done.returncode == 143, done.stderr
    assert "stopped by SIGTERM" in done.stderr
    assert sorted(path.name for path in matrices.iterdir()) == before


def test_ctrl_c_while_commands_are_made_prints_no_traceback(tmp_path):
    early = "import typer; typer.Typer.__call__ = lambda *_, **__: signal.raise_signal(2); main()"
    done = run(tmp_path, signal.SIGINT, "lu", code=CODE.replace("main()", early))
    assert done.returncode == 130, done.stderr
    assert done.stderr == "hdgemm: interrupted\n"


def test_a_checkpoint_keeps_the_draft_of_a_stopped_factorisation(matrices):
    command = ("lu", "S.npy", "--out", "C.npy", "--checkpoint")
    assert run(matrices, signal.SIGTERM, *command).returncode == 143
    assert (matrices / ".C.npy.hdgemm-journal").exists()
    assert list(matrices.glob(".C.npy.*.part"))
    assert not (matrices / "C.npy").exists()
