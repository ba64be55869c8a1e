"""A small product with many tiles, and ways to cut its run off."""

import hashlib
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import numpy as np

from hdgemm.blas.products import multiply
from hdgemm.options import Options
from tests.counting import nth_call

TILE = (40, 48, 64)


class Stop(Exception):  # noqa: N818  (a signal, not an error)
    """Raised by an observer, to end a run from within."""


class Killer:
    """Observer that kills its process at the n-th event."""

    def __init__(self, number):
        self._last = nth_call(number)

    def __call__(self, event):
        if self._last():
            os.kill(os.getpid(), signal.SIGKILL)


#: A server that has imported the package once forks the children, each of which would take a
#: second of processor time to import it.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["hdgemm.blas.products", "hdgemm.linalg", "zarr", "pytest"])


def _run(environment, target, arguments):
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


def killed(target, *arguments):
    """Let `target(*arguments)`, which kills its process, run in a process of its own."""
    process = FORKING.Process(target=_run, args=(dict(os.environ), target, arguments))
    process.start()
    process.join(400)
    assert process.exitcode == -signal.SIGKILL


class Case:
    """C := alpha·A·B + beta·C in a folder: A, B, the old C0, and R, the result of a plain run.

    `mode` is ``"new"`` (C appears when it is whole), ``"over"`` (an existing C is overwritten in
    place, and not read), ``"replace"`` (an existing C is read, and replaced when the new one is
    whole) or ``"update"`` (it is read and overwritten in place).
    """

    def __init__(self, folder, mode="new", *, device="host", dtype="float64", order="C", **options):
        self.folder = Path(folder)
        self.mode = mode
        self.options = Options(tile=TILE, devices=device, **options)
        rng = np.random.default_rng(7)
        m, k, n = 300, 150, 280
        np.save(self.path("A"), rng.standard_normal((m, k)).astype(dtype))
        np.save(self.path("B"), rng.standard_normal((k, n)).astype(dtype))
        old = np.asarray(rng.standard_normal((m, n)).astype(dtype), order=order)
        np.save(self.path("C0"), old)
        self.reset()
        self.run(checkpoint=False)
        self.path("C").replace(self.path("R"))
        self.expected = self.sha("R")
        self.reset()

    def path(self, name):
        return self.folder / f"{name}.npy"

    def sha(self, name="C"):
        return hashlib.sha256(self.path(name).read_bytes()).hexdigest()

    def reset(self):
        """Bring back the state before any run."""
        for path in self.folder.iterdir():
            if path.name not in ("A.npy", "B.npy", "C0.npy", "R.npy"):
                path.unlink()
        if self.mode != "new":
            shutil.copy(self.path("C0"), self.path("C"))

    @property
    def journal(self):
        return self.folder / ".C.npy.hdgemm-journal"

    def run(self, *, checkpoint=True, restart=False, alpha=1.5, options=None, **arguments):
        c = self.path("C")
        if self.mode == "new":
            place = {"out": c}
        elif self.mode == "over":
            place = {"out": np.load(c, mmap_mode="r+")}
        elif self.mode == "replace":
            place = {"out": c, "c": c, "beta": -0.5}
        else:
            mapped = np.load(c, mmap_mode="r+")
            place = {"out": mapped, "c": mapped, "beta": -0.5}
        return multiply(
            self.path("A"), self.path("B"), alpha=alpha, options=options or self.options,
            checkpoint=checkpoint, restart=restart, **place, **arguments,
        )  # fmt: skip

    def run_until(self, count, stage="store2", **arguments):
        """Run, and stop as the `count`-th operation of a stage is done; say whether it was cut."""
        seen = []

        def observe(event):
            if event.stage == stage:
                seen.append(event)
                if len(seen) >= count:
                    raise Stop

        try:
            self.run(observer=observe, **arguments)
        except Stop:
            return True
        return False

    def leftovers(self):
        """Names in the folder besides the operands, C and its journal."""
        usual = {"A.npy", "B.npy", "C0.npy", "R.npy", "C.npy", self.journal.name}
        return sorted({path.name for path in self.folder.iterdir()} - usual)


def shared_case(factory, mode, known={}):  # noqa: B006  (one folder serves many tests)
    """A case as before any run, in a folder that the tests of a module share."""
    case = known.get(mode)
    if case is None or not case.folder.exists():
        case = known[mode] = Case(factory.mktemp(mode), mode)
    case.reset()
    return case
