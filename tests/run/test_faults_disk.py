"""Full disks, files that shrink, disks that fail: one error, and no C that is not whole."""

import errno
import gc
import os
import resource
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hdgemm import InputError, MatrixIOError, Options, dgemm, multiply
from hdgemm.matrices.draft import wait_for_freed_space
from hdgemm.matrices.files import BlockFile
from tests.run.folder import N, contents

PIPELINE = Options(devices="host", tile=(64, 64, 64))


def lanes():
    return [thread.name for thread in threading.enumerate() if "lane" in thread.name]


class At:
    """An observer that does something once, when the n-th event of a stage comes."""

    def __init__(self, stage, number, action):
        self.stage, self.left, self.action = stage, number, action
        self.lock = threading.Lock()

    def __call__(self, event):
        with self.lock:
            if event.stage == self.stage:
                self.left -= 1
                if self.left == 0:
                    self.action()


class TestShrinking:
    @pytest.mark.parametrize("name", ["a", "b"])
    @pytest.mark.parametrize("left", [0, 4096, N * N * 4])
    def test_an_input(self, matrices, name, left):
        before = contents(matrices)
        path = matrices / f"{name}.npy"
        observer = At("mult1", 1, lambda: os.truncate(path, left))
        with pytest.raises(MatrixIOError, match=f"{name}.npy") as caught:
            multiply(
                matrices / "a.npy", matrices / "b.npy", out=matrices / "d.npy",
                options=PIPELINE, observer=observer,
            )  # fmt: skip
        assert caught.value.path == str(path)
        assert caught.value.length > 0
        assert contents(matrices) == before | {path.name: before[path.name][:left]}
        assert lanes() == []

    def test_the_old_c(self, matrices):
        path = matrices / "c.npy"
        observer = At("store2", 1, lambda: os.truncate(path, 1 << 20))
        with pytest.raises(MatrixIOError, match=r"c\.npy"):
            multiply(
                matrices / "a.npy", matrices / "b.npy", c=path, beta=1.0,
                out=matrices / "d.npy", options=PIPELINE, observer=observer,
            )  # fmt: skip
        assert {entry.name for entry in matrices.iterdir()} == {"a.npy", "b.npy", "c.npy"}

    def test_c_itself_in_place(self, matrices):
        path = matrices / "c.npy"
        mapped = np.load(path, mmap_mode="r+")
        observer = At("store2", 2, lambda: os.truncate(path, 1 << 20))
        with pytest.raises(MatrixIOError, match=r"c\.npy"):
            dgemm(
                1.0, matrices / "a.npy", matrices / "b.npy", 1.0, mapped, out=mapped,
                options=PIPELINE, observer=observer,
            )  # fmt: skip

    def test_an_input_that_is_replaced_meanwhile_stays_readable(self, matrices):
        # The run reads the file that it opened, whatever bears its name later.
        a, b = (np.load(matrices / f"{name}.npy") for name in "ab")
        observer = At("mult1", 1, (matrices / "a.npy").unlink)
        multiply(
            matrices / "a.npy", matrices / "b.npy", out=matrices / "d.npy",
            options=PIPELINE, observer=observer,
        )  # fmt: skip
        np.testing.assert_allclose(np.load(matrices / "d.npy"), a @ b, atol=1e-9)


class TestNoSpace:
    def test_refused_before_anything_is_computed(self, matrices):
        """Under a limit on file sizes, as on a full disk: the space is taken before the run."""
        before = contents(matrices)
        program = (
            "import resource, sys\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
            "from hdgemm.cli.app import main\n"
            "main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, "multiply", "a.npy", "b.npy", "--out", "d.npy"],
            cwd=matrices,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert done.returncode == 1, done.stderr
        message = " ".join(done.stderr.split())
        assert str(N * N * 8) in message or str(N * N * 8 + 4096) in message
        assert "file size limit of 1000000 bytes: raise it" in message
        assert "Traceback" not in message
        assert contents(matrices) == before

    def test_the_limit_in_this_process(self, matrices):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        try:
            with pytest.raises(MatrixIOError, match="reserve") as caught:
                multiply(
                    matrices / "a.npy", matrices / "b.npy", out=matrices / "d.npy", options=PIPELINE
                )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.requested >= N * N * 8
        assert not (matrices / "d.npy").exists()

    @pytest.mark.parametrize("number", [1, 5, 40])
    @pytest.mark.parametrize("method", ["read_around", "write"])
    def test_a_disk_that_fails_at_the_nth_request(self, matrices, monkeypatch, method, number):
        before = contents(matrices)
        honest, lock, left = getattr(BlockFile, method), threading.Lock(), [number]

        def failing(self, *arguments):
            with lock:
                left[0] -= 1
                broken = left[0] <= 0
            if broken:
                cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise MatrixIOError("the disk is full", path=str(self.path)) from cause
            return honest(self, *arguments)

        monkeypatch.setattr(BlockFile, method, failing)
        with pytest.raises(MatrixIOError, match="the disk is full") as caught:
            multiply(
                matrices / "a.npy", matrices / "b.npy", c=matrices / "c.npy", beta=1.0,
                out=matrices / "c.npy", options=PIPELINE,
            )  # fmt: skip
        assert isinstance(caught.value.__cause__, OSError)
        monkeypatch.undo()
        assert contents(matrices) == before
        assert lanes() == []


def test_what_an_observer_raises_stops_the_run(matrices):
    before = contents(matrices)

    def fail():
        raise InputError("enough")

    with pytest.raises(InputError, match="enough"):
        multiply(
            matrices / "a.npy", matrices / "b.npy", out=matrices / "d.npy",
            options=PIPELINE, observer=At("store2", 2, fail),
        )  # fmt: skip
    assert contents(matrices) == before
    assert lanes() == []


@pytest.mark.parametrize("verify", [False, True, "tiles"])
@pytest.mark.parametrize("devices", ["host", ("host", "opencl:0")])
def test_files_are_closed_without_the_garbage_collector(matrices, verify, devices):
    """A cycle of references would keep them open, and HDF5 files locked, for an unknown time."""
    options = replace(PIPELINE, devices=devices, verify=verify)

    def run(**keywords):
        multiply(matrices / "a.npy", matrices / "b.npy", out=matrices / "d.npy", options=options,
                 **keywords)  # fmt: skip

    def fail():
        raise InputError("enough")

    def opened():
        wait_for_freed_space()
        links = (path for path in Path("/proc/self/fd").iterdir() if path.exists())
        return [str(path.readlink()) for path in links if path.resolve().parent == matrices]

    gc.disable()
    try:
        run()
        assert opened() == []
        with pytest.raises(InputError):
            run(observer=At("mult1", 1, fail))
        assert opened() == []
    finally:
        gc.enable()
