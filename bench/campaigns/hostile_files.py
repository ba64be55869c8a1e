"""Damaged and malicious files as operands, journals and caches: a plain error or a right result.

python -m bench.campaigns.hostile_files [--seeds 200] [--format npy ...]

Each file is a sound one with some bytes changed, cut off, repeated or replaced by random ones. It
is opened, multiplied and verified in a forked process with limited memory and time, so that a
crash or a hang of a library is counted, not suffered.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.campaigns.tally import Tally, add_save
from hdgemm import Options, multiply
from hdgemm.errors import HdgemmError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hdgemm.pipeline.timeline import Event, Observer

SIDE: Final = 24
SECONDS: Final = 60
MEMORY: Final = 4 << 30
#: Exit statuses of a child: the file was refused, or its product was computed.
REFUSED, COMPUTED = 10, 11


#: The file to damage, and the operand's location, by format.
FILES: Final = {
    "npy": ("x.npy", "x.npy"), "hdf5": ("x.h5", "x.h5::x"),
    "zarr3": ("x.zarr/zarr.json", "x.zarr"), "zarr2": ("x.zarr/.zarray", "x.zarr"),
    "zarr_chunk": ("x.zarr/c/1/1", "x.zarr"), "journal": (".c.npy.hdgemm-journal", "x.npy"),
}  # fmt: skip


class Interruption(BaseException):
    """Raised by an observer, to leave a run unfinished."""


def make(form: str, folder: Path) -> None:
    """Write a sound operand, and for a journal an unfinished run."""
    x = np.ones((SIDE, SIDE))
    if form == "hdf5":
        import h5py

        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset("x", data=x, chunks=(8, 8), compression="gzip")
    elif form.startswith("zarr"):
        import zarr

        version = 2 if form == "zarr2" else 3
        zarr.create_array(store=folder / "x.zarr", data=x, chunks=(8, 8), zarr_format=version)
    else:
        np.save(folder / "x.npy", x)
    if form == "journal":
        with contextlib.suppress(Interruption):
            product(f"{folder}/x.npy", folder, interrupt)


def interrupt(event: Event) -> None:
    """Stop a run at its fifth tile."""
    if event.stage == "store2" and event.number == 4:
        raise Interruption


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return a file's bytes with damage of a random kind."""
    kind = rng.randrange(6)
    at = rng.randrange(len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[rng.randrange(at + 1) :]
    if kind == 2:
        return rng.randbytes(rng.choice([0, 1, 100, 5000]))
    changed = bytearray(content)
    for _ in range(rng.choice([1, 2, 8])):
        where = rng.randrange(len(changed)) if kind == 3 else rng.randrange(min(200, len(changed)))
        changed[where] = rng.choice([0, 0x7F, 0xFF, 0x2D, 0x39, rng.randrange(256)])
    return bytes(changed)


def product(operand: str, folder: Path, observer: Observer | None = None) -> None:
    """Multiply an operand by itself, as a durable run that goes on where a journal is there."""
    options = Options(devices="host", tile=(8, 8, 8), host_memory="64MB")
    multiply(
        operand, operand, out=folder / "c.npy", options=options, checkpoint=True, observer=observer
    )


def use(form: str, operand: str, folder: Path) -> None:
    """Compute the product under limits; never returns."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        product(operand, folder)
    except HdgemmError:
        os._exit(REFUSED)
    except BaseException as error:  # noqa: BLE001 - it is judged
        print(repr(error), flush=True)
        os._exit(1)
    # The operand beside a damaged journal is sound, so that C must be right.
    if form == "journal" and not (np.load(folder / "c.npy") == SIDE).all():
        os._exit(1)
    os._exit(COMPUTED)


def run_in_child(call: Callable[[], object]) -> int:
    """Run in a forked process, which has opened nothing yet; return its exit status."""
    pid = os.fork()
    if pid == 0:
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def try_one(form: str, seed: int, tally: Tally) -> None:
    """Damage one file and use it."""
    target, operand = FILES[form]
    with tempfile.TemporaryDirectory(prefix="hdgemm-hostile-") as name:
        folder = Path(name)
        run_in_child(lambda: make(form, folder))
        path = folder / target
        path.write_bytes(damaged(path.read_bytes(), random.Random(f"{form} {seed}")))
        status = run_in_child(lambda: use(form, f"{folder}/{operand}", folder))
    tally.counts[{REFUSED: "refused", COMPUTED: "computed"}.get(status, "other")] += 1
    tally.check(status in {REFUSED, COMPUTED}, f"{form}, seed {seed}: exit status {status}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--format", choices=FILES, action="append")
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    for library in ("h5py", "zarr"):  # imported once, and not in each child
        import_module(library)
    for form in asked.format or FILES:
        for seed in range(asked.seeds):
            try_one(form, seed, tally)
    return tally.end("hostile_files", asked)


if __name__ == "__main__":
    sys.exit(main())
