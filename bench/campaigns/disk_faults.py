"""Requests to the disk fail one by one: products into every format, and linear algebra.

python -m bench.campaigns.disk_faults [--every 1] [--format npy ...] [--routine lu_factor ...]

Each run must end in a plain error. After each failed run the inputs must be as they were, no
unfinished result may be left under any name, no thread of the run may live on; a durable run,
repeated without faults, must give the right bits.

The faults come from a preload shim, disk_faults.c, which the C compiler (`cc`) makes at the start:
it sees the requests of all libraries. Without a compiler the functions of `os` are replaced, which
sees the requests of hdgemm and of Zarr's Python code, and not HDF5's.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import hdgemm
from bench.campaigns.tally import Tally, add_save
from hdgemm import linalg
from hdgemm.blas.products import multiply
from hdgemm.errors import HdgemmError
from hdgemm.matrices.operands import open as open_stored
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

M, N, K = 24, 20, 18
KINDS: Final = ("read", "write", "sync", "reserve")
FAULTS: Final = (
    ("read", errno.EIO), ("write", errno.EIO), ("write", errno.ENOSPC), ("sync", errno.EIO),
    ("reserve", errno.ENOSPC),
)  # fmt: skip
#: Location of C by format; the durable ones keep a journal.
FORMATS: Final = {
    "npy": "C.npy", "raw": f"C.bin::{M}x{N}:float64", "hdf5": "C.h5::C", "zarr": "C.zarr::C",
}  # fmt: skip
MODES: Final = ("new", "replace", "durable")
#: Order of the matrices of linear algebra.
ORDER: Final = 48
ROUTINES: Final[dict[str, Callable[..., object]]] = {
    "lstsq": lambda at, **how: linalg.lstsq(at / "T.npy", at / "Y.npy", out=at / "X.npy", **how),
    "lu": lambda at, **how: linalg.lu(at / "A.npy", out=(at / "L.npy", at / "U.npy"), **how),
    "solve_triangular": lambda at, **how: linalg.solve_triangular(
        at / "S.npy", at / "B.npy", lower=True, out=at / "X.npy", **how
    ),
    "qr_multiply": lambda at, **how: linalg.qr_multiply(
        at / "A.npy", at / "B.npy", mode="left", out=(at / "X.npy", at / "R.npy"), **how
    ),
    "syrk": lambda at, **how: hdgemm.syrk(1.0, at / "A.npy", out=at / "X.npy", **how),
    "slogdet": lambda at, **how: linalg.slogdet(at / "A.npy", **how),
    "cond": lambda at, **how: linalg.cond(at / "A.npy", **how),
    "trsm": lambda at, **how: hdgemm.trsm(
        1.0, at / "S.npy", at / "B.npy", lower=True, out=at / "X.npy", **how
    ),
}
#: Routines that take a checkpoint.
DURABLE: Final[dict[str, Callable[..., object]]] = {
    "lu_factor": lambda at, **how: linalg.lu_factor(at / "A.npy", out=at / "F.npy", **how),
    "cholesky": lambda at, **how: linalg.cholesky(at / "S.npy", out=at / "F.npy", **how),
    "qr raw": lambda at, **how: linalg.qr(at / "A.npy", mode="raw", out=at / "F.npy", **how),
    "qr": lambda at, **how: linalg.qr(
        at / "T.npy", mode="economic", out=(at / "Q.npy", at / "R.npy"), **how
    ),
    "solve": lambda at, **how: linalg.solve(at / "A.npy", at / "B.npy", out=at / "X.npy", **how),
    "solve pos": lambda at, **how: linalg.solve(
        at / "S.npy", at / "B.npy", assume_a="pos", out=at / "X.npy", **how
    ),
    "inv": lambda at, **how: linalg.inv(at / "A.npy", out=at / "X.npy", **how),
}
_REPLACED: Final = {
    "read": ("read", "pread", "preadv"), "write": ("write", "pwrite", "pwritev"),
    "sync": ("fsync", "fdatasync"), "reserve": ("posix_fallocate", "ftruncate"),
}  # fmt: skip


class Shim:
    """The preload shim in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def arm(self, kind: str, number: int, error: int) -> None:
        """Fail the number-th request of a kind, and all after it."""
        self._library.disk_faults_arm(KINDS.index(kind), number, error)

    def disarm(self) -> int:
        """Let all requests pass; return how many there were."""
        count: int = self._library.disk_faults_count()
        self._library.disk_faults_arm(-1, 0, 0)
        return count


class PythonFaults:
    """The same for requests through Python's `os`, with its functions replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._lock = threading.Lock()
        self._armed: tuple[str, int, int] | None = None
        self._count = 0
        for kind, names in _REPLACED.items():
            for name in names:
                setattr(os, name, self._wrapped(kind, getattr(os, name)))

    def arm(self, kind: str, number: int, error: int) -> None:
        """Fail the number-th request of a kind, and all after it."""
        self._armed, self._count = (kind, number, error), 0

    def disarm(self) -> int:
        """Let all requests pass; return how many there were."""
        self._armed = None
        return self._count

    def _wrapped(self, kind: str, call: Any) -> Any:
        def checked(fd: int, *arguments: Any) -> Any:
            armed = self._armed
            if armed is not None and armed[0] == kind:
                path = str(Path(f"/proc/self/fd/{fd}").readlink())
                if path.startswith(self._folder):
                    with self._lock:
                        self._count += 1
                        fails = self._count >= armed[1]
                    if fails:
                        raise OSError(armed[2], os.strerror(armed[2]))
            return call(fd, *arguments)

        return checked


class Subject:
    """One product in a folder, and what its folder held before."""

    def __init__(self, folder: Path, name: str, mode: str) -> None:
        self.folder, self.name, self.mode = folder, name, mode
        self.c = f"{folder}/{FORMATS.get(name, name)}"
        self.make_inputs()
        self.inputs = {path.name for path in folder.iterdir()}
        self.reset()
        self.run()
        self.right = self.result()
        self.reset()
        self.old = self.left()
        self.before = self.contents()

    def make_inputs(self) -> None:
        """Write the operands."""
        rng = np.random.default_rng(1)
        for name, shape in (("A", (M, K)), ("B", (K, N)), ("C0", (M, N))):
            np.save(self.folder / f"{name}.npy", rng.standard_normal(shape))
        self.a = compressed(self.folder, self.name)

    def reset(self) -> None:
        """Bring back the state before any run."""
        for path in self.folder.iterdir():
            if path.name not in self.inputs:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.mode == "replace":
            multiply(self.folder / "C0.npy", np.eye(N), out=self.c)

    def run(self) -> None:
        """Compute C."""
        old = {"c": self.c, "beta": 0.5} if self.mode == "replace" else {}
        multiply(
            self.a, self.folder / "B.npy", out=self.c, **old,
            options=Options(devices="host", tile=(8, 10, 9), host_memory="64MB"),
            checkpoint=self.mode == "durable",
        )  # fmt: skip

    def result(self) -> bytes:
        """Return C's elements."""
        with open_stored(self.c) as c:
            return np.asarray(c).tobytes()

    def left(self) -> bytes | None:
        """Return C's elements; None where there is no C, nothing where it cannot be read."""
        if not Path(self.c.partition("::")[0]).exists():
            return None
        try:
            return self.result()
        except HdgemmError:
            return b""

    def drafts(self) -> list[str]:
        """Return the names of temporary files."""
        return sorted(path.name for path in self.folder.rglob(".*"))

    def contents(self) -> dict[str, bytes]:
        """Return all files below the folder."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}


class RoutineSubject(Subject):
    """One routine of linear algebra, by name; its results are all files but operands and drafts."""

    def make_inputs(self) -> None:
        """Write A, S (positive definite), B (right-hand sides), T (tall) and its right-hand Y."""
        rng = np.random.default_rng(1)
        a = rng.standard_normal((ORDER, ORDER))
        matrices = {
            "A": a, "S": a @ a.T + ORDER * np.eye(ORDER), "B": rng.standard_normal((ORDER, 8)),
            "T": rng.standard_normal((4 * ORDER, 16)), "Y": rng.standard_normal((4 * ORDER, 8)),
        }  # fmt: skip
        for name, matrix in matrices.items():
            np.save(self.folder / f"{name}.npy", matrix)

    def run(self) -> None:
        """Call the routine."""
        options = Options(devices="host", tile=(16, 16, 8), host_memory="64MB")
        durable = {"checkpoint": True} if self.mode == "durable" else {}
        (ROUTINES | DURABLE)[self.name](self.folder, options=options, **durable)

    def result(self) -> bytes:
        """Return the bytes of all results."""
        places = sorted(path for path in self.folder.glob("[!.]*.npy"))
        return b"".join(path.read_bytes() for path in places if path.name not in self.inputs)

    def left(self) -> bytes | None:
        """Return the bytes of what there is; None where there is nothing."""
        return self.result() or None


def compressed(folder: Path, form: str) -> str:
    """Store A once more, compressed, where the format of C can do that; return its location."""
    a = np.load(folder / "A.npy")
    if form == "hdf5":
        import h5py

        with h5py.File(folder / "A.h5", "w") as file:
            file.create_dataset("A", data=a, chunks=(8, 9), compression="gzip")
        return f"{folder}/A.h5::A"
    if form == "zarr":
        import zarr

        zarr.create_array(store=folder / "A.zarr", data=a, chunks=(8, 9))
        return f"{folder}/A.zarr"
    return f"{folder}/A.npy"


def attack(subject: Subject, faults: Shim | PythonFaults, tally: Tally, every: int) -> None:
    """Let every request of each kind fail in turn, until a run makes fewer requests."""
    before = descriptors()
    for kind, error in FAULTS:
        number = 1
        while fail_once(subject, faults, tally, (kind, number, error)):
            number += every
    left = descriptors() - before
    tally.check(left <= 0, f"{subject.c}, {subject.mode}: {left} file descriptors are left open")


def fail_once(
    subject: Subject, faults: Shim | PythonFaults, tally: Tally, fault: tuple[str, int, int]
) -> bool:
    """Run with one fault and check what is left; say whether the fault occurred."""
    kind, number, error = fault
    at = f"{subject.c}, {subject.mode}, {os.strerror(error)} at {kind} {number}"
    faults.arm(kind, number, error)
    raised: BaseException | None = None
    try:
        subject.run()
    except BaseException as caught:  # noqa: BLE001 - it is judged
        raised = caught
    if faults.disarm() < number:
        tally.check(raised is None, f"{at}: {raised!r} without a fault")
        subject.reset()
        return False
    tally.counts["tolerated" if raised is None else "refused"] += 1
    tally.check(isinstance(raised, HdgemmError | None), f"{at}: {raised!r}")
    lanes = [
        t.name for t in threading.enumerate() if t.name.startswith(("hdgemm-load", "hdgemm-s"))
    ]
    tally.check(not lanes, f"{at}: threads {lanes} live")
    if subject.mode == "durable" and raised is not None:
        try:
            subject.run()
            tally.counts["resumed"] += 1
        except HdgemmError as why:
            tally.wrong.append(f"{at}: cannot be resumed: {why}")
    complete = raised is None or subject.mode == "durable"
    if complete:
        tally.check(subject.result() == subject.right, f"{at}: C is wrong")
    else:
        left = subject.left()
        tally.counts["published"] += left == subject.right
        tally.counts["damaged HDF5 file"] += left == b""
        allowed = {subject.old, subject.right}
        if ".h5::" in subject.c and subject.mode == "replace":
            allowed.add(b"")  # HDF5 changes its file in place, and reads it meanwhile
        tally.check(left in allowed, f"{at}: C is neither old nor right")
        tally.check(not (names := subject.drafts()), f"{at}: {names} are left ({raised})")
    if subject.contents() != subject.before:
        subject.reset()
    return True


def descriptors() -> int:
    """Return how many files this process has open, but for unreachable objects."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def preloaded(arguments: Sequence[str]) -> int | None:
    """Run this campaign again with the shim preloaded; None where there is no compiler."""
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory(prefix="hdgemm-faults-") as name:
        folder = Path(name).resolve()
        shim = folder / "disk_faults.so"
        compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"]
        try:
            subprocess.run(compiler, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        data = folder / "data"
        data.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "bench.campaigns.disk_faults", *arguments],
            check=False,
            env=os.environ | {"LD_PRELOAD": str(shim), "DISK_FAULTS": f"{data}/"},
        )
        return done.returncode


def subjects(folder: Path, asked: argparse.Namespace) -> Iterator[Subject]:
    """Make the subjects one after the other, each in an empty folder."""
    every = not (asked.format or asked.routine)
    for name in [*(asked.format or FORMATS)] if every or asked.format else ():
        for mode in asked.mode or MODES:
            yield from _in_folder(Subject, folder, name, mode)
    for name in asked.routine or ({**ROUTINES, **DURABLE} if every else ()):
        for mode in asked.mode or ("new", "durable"):
            if mode == "new" or (mode == "durable" and name in DURABLE):
                yield from _in_folder(RoutineSubject, folder, name, mode)


def _in_folder(kind: type[Subject], folder: Path, name: str, mode: str) -> Iterator[Subject]:
    at = folder / f"{name}-{mode}"
    at.mkdir()
    yield kind(at, name, mode)
    shutil.rmtree(at)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign, under the shim where it can be made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="test every n-th request")
    parser.add_argument("--format", choices=FORMATS, action="append")
    parser.add_argument("--routine", choices=[*ROUTINES, *DURABLE], action="append")
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--python", action="store_true", help="replace Python's functions instead")
    add_save(parser)
    arguments = sys.argv[1:] if arguments is None else arguments
    asked = parser.parse_args(arguments)
    if not asked.python and "DISK_FAULTS" not in os.environ:
        status = preloaded(arguments)
        return main([*arguments, "--python"]) if status is None else status
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-faults-") as name:
        folder = Path(os.environ.get("DISK_FAULTS", name)).resolve()
        faults = PythonFaults(folder) if asked.python else Shim()
        for subject in subjects(folder, asked):
            attack(subject, faults, tally, asked.every)
    tally.figures["faults by"] = type(faults).__name__
    return tally.end("disk_faults", asked)


if __name__ == "__main__":
    sys.exit(main())
