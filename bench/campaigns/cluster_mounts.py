"""Workers of a Dask cluster in mount namespaces, which see other files than the client.

python -m bench.campaigns.cluster_mounts [--case multiply-A]

In each case a worker sees another A, B, old C or result under the name that the client gives, from
its start or from the middle of the run on. Alone it must be refused with a message that has the
file and the worker, and must leave the other file as it is. Then a worker that sees the client's
files goes on with the same command, and the result is checked against its operands. Bind mounts
need root.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from distributed import Client

import hdgemm
from bench.campaigns.tally import Tally, add_save
from hdgemm.cluster import blocks, cholesky, multiply, syrk
from hdgemm.errors import HdgemmError
from hdgemm.options import Options
from hdgemm.verify import verify
from tests.cluster.processes import scheduler, wait_for, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Call = Callable[..., Any]

N = 400
OPTIONS: Final = Options(devices="host", host_memory="64MB", tile=(64, 64, 64))
#: Mounts pairs of files, then becomes the command behind the dashes.
_MOUNT: Final = """
while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 1; shift 2; done
shift; exec "$@"
"""


@dataclass(frozen=True)
class Case:
    """A routine and the file that a worker sees otherwise.

    `change` makes the other file; `early`: an earlier run has left its draft; `late`: the mount is
    made when a first block is finished.
    """

    name: str
    routine: str
    file: str
    change: Callable[[Path], None]
    early: bool = False
    late: bool = False
    in_place: bool = False


def other_numbers(file: Path) -> None:
    """Give all elements another value."""
    matrix = np.load(file)
    matrix += 1
    np.save(file, matrix)


def other_age(file: Path) -> None:
    """Change one element between the samples, an hour ago."""
    matrix = np.load(file)
    matrix[N // 3 + 2, N // 5] += 1
    np.save(file, matrix)
    os.utime(file, (time.time() - 3600,) * 2)


def shorter(file: Path) -> None:
    """Cut the file short."""
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)


def nothing(_: Path) -> None:
    """Leave a copy as it is."""


CASES: Final = (
    *(
        Case(f"multiply-{name}{suffix}", "multiply", f"{name}.npy", change, late=late)
        for name in "ABC"
        for suffix, change, late in (
            ("", other_numbers, False), ("-older", other_age, False), ("-late", other_numbers, True)
        )
    ),
    Case("multiply-A-shorter", "multiply", "A.npy", shorter),
    Case("multiply-out", "multiply", "X.npy", nothing, in_place=True),
    Case("multiply-draft", "multiply", ".X.npy.*.part", nothing, early=True),
    Case("syrk-A", "syrk", "A.npy", other_numbers),
    Case("syrk-out", "syrk", "X.npy", nothing, in_place=True),
    Case("cholesky-A", "cholesky", "S.npy", other_numbers),
    Case("cholesky-A-late", "cholesky", "S.npy", other_numbers, late=True),
    Case("cholesky-draft", "cholesky", ".X.npy.*.part", nothing, early=True),
)  # fmt: skip


def call(case: Case, folder: Path, client: Any, **arguments: Any) -> Any:
    """Run the routine of a case."""
    a, b, c, s, x = (folder / f"{name}.npy" for name in "ABCSX")
    how = {"client": client, "options": OPTIONS, "checkpoint": folder / "journal"} | arguments
    with ExitStack() as stack:
        how["out"] = stack.enter_context(hdgemm.open(x, "r+")) if case.in_place else x
        if case.routine == "multiply":
            return multiply(a, b, alpha=2.0, beta=0.5, c=c, **how)
        if case.routine == "syrk":
            return syrk(2.0, a, lower=1, **how)
        return cholesky(s, True, **how)


def is_right(case: Case, folder: Path) -> bool:
    """Check the result."""
    a, b, c, s, x = (folder / f"{name}.npy" for name in "ABCSX")
    if case.routine == "multiply":
        return bool(verify(a, b, x, alpha=2.0, beta=0.5, c_before=c).passed)
    found = np.load(x)
    if case.routine == "syrk":
        whole = np.tril(found) + np.tril(found, -1).T
        kept = (found[np.triu_indices(N, 1)] == (3.0 if case.in_place else 0.0)).all()
        return bool(kept and verify(a, np.load(a).T, whole, alpha=2.0).passed)
    return bool(verify(found, found.T, np.load(s)).passed)


def make_files(folder: Path) -> None:
    """Write operands; few elements of A are not zero, so that samples say little."""
    rng = np.random.default_rng(0)
    for name in "BC":
        np.save(folder / f"{name}.npy", rng.standard_normal((N, N)))
    np.save(folder / "A.npy", np.diag(rng.standard_normal(N)) + np.eye(N, k=7))
    g = rng.standard_normal((N, N))
    np.save(folder / "S.npy", g @ g.T + N * np.eye(N))
    np.save(folder / "X.npy", np.full((N, N), 3.0))


def stop(client: Any, case: Case, folder: Path) -> None:
    """Leave a run with a draft and some finished blocks."""
    import threading

    cancel = threading.Event()
    try:
        call(case, folder, client, cancel=cancel, progress=lambda _: cancel.set())
    except HdgemmError:
        wait_for(lambda: not any(client.processing().values()))


@contextmanager
def wrong_worker(address: str, case: Case, other: Path, place: Path) -> Iterator[Any]:
    """Start a worker in a mount namespace of its own."""
    pairs = [] if case.late else [str(other), str(place)]
    prefix = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNT, "sh", *pairs,
              "--"]  # fmt: skip
    with worker(address, name=case.name, prefix=prefix) as process:
        yield process


def attack(case: Case, folder: Path, wrong: Any, right: Any, tally: Tally) -> None:
    """Run a case with a worker that sees other files, then with one that sees the client's."""
    make_files(folder)
    if not case.in_place:
        (folder / "X.npy").unlink()
    if case.early:
        stop(right, case, folder)
    [place] = folder.glob(case.file)
    other = folder / f"other{place.suffix}"
    shutil.copy2(place, other)
    case.change(other)
    before = other.read_bytes()
    with wrong_worker(wrong.scheduler.address, case, other, place) as process:
        wrong.wait_for_workers(1, timeout=300)
        [address] = wrong.nthreads()
        mounted: list[bool] = []

        def mount(_: Any) -> None:
            if case.late and not mounted:
                mounted.append(True)
                subprocess.run(
                    ["nsenter", "--mount", "--target", str(process.pid),
                     "mount", "--bind", other, place], check=True,
                )  # fmt: skip

        try:
            call(case, folder, wrong, progress=mount)
            message = "no error"
        except HdgemmError as error:
            message = str(error)
    names = address in message and place.name in message
    tally.check(names, f"{case.name}: the message has no worker or file: {message}")
    tally.check(other.read_bytes() == before, f"{case.name}: the other file was changed")
    tally.counts["refused"] += names
    reason = re.sub(r"\S*[/:]\S+|\d+", "…", message)[:100]
    tally.figures.setdefault("messages", {})[case.name] = reason
    wait_for(lambda: not wrong.nthreads())
    call(case, folder, right)
    tally.check(is_right(case, folder), f"{case.name}: the result is wrong")
    tally.counts["products"] += 1


def campaign(cases: Sequence[Case], tally: Tally) -> None:
    """Run all cases: one scheduler has the worker that sees other files, one the right worker."""
    # Blocks of equal size: a worker alone would compute all of C as one.
    blocks.BlockPool._elements = lambda pool, _: pool.total / 8  # type: ignore[method-assign] # noqa: SLF001
    with ExitStack() as stack:
        clients = []
        for _ in range(2):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hdgemm-mounts-"))
            running, file = scheduler(folder)
            stack.enter_context(running)
            wait_for(Path(file).exists)
            clients.append(stack.enter_context(Client(scheduler_file=file, timeout="60s")))
        wrong, right = clients
        stack.enter_context(worker(right.scheduler.address, name="right"))
        right.wait_for_workers(1, timeout=300)
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="hdgemm-mounts-") as name:
                attack(case, Path(name), wrong, right, tally)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; status 2 where files cannot be mounted over others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    add_save(parser)
    asked = parser.parse_args(arguments)
    try:
        test = partial(subprocess.run, capture_output=True, check=True)
        with tempfile.TemporaryDirectory() as name:
            test(["unshare", "--mount", "mount", "--bind", name, name])
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no mount namespaces here: {error}", file=sys.stderr)
        return 2
    tally = Tally()
    campaign([case for case in CASES if not asked.case or case.name in asked.case], tally)
    return tally.end("cluster_mounts", asked)


if __name__ == "__main__":
    sys.exit(main())
