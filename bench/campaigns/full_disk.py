"""Disks with too little room, for every format of C: a plain error with numbers, nothing left.

python -m bench.campaigns.full_disk [--format npy ...]

A file system of 8 MB is mounted where this user may do that (root); elsewhere a limit on the size
of files (RLIMIT_FSIZE) stands for it. Each product is tried with less and less room, and once more
when there is room again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.campaigns.tally import Tally, add_save
from hdgemm.blas.products import multiply
from hdgemm.errors import HdgemmError
from hdgemm.matrices.operands import open as open_stored
from hdgemm.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

N: Final = 600
NBYTES: Final = N * N * 8
FORMATS: Final = {
    "npy": "C.npy", "raw": f"C.bin::{N}x{N}:float64", "hdf5": "C.h5::C", "zarr": "C.zarr::C",
}  # fmt: skip
#: Bytes of room to try C with; it takes 2.88 MB.
ROOM: Final = (0, 4096, 100_000, NBYTES // 2, NBYTES - 1)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount 8 MB at a folder; give False where this user may not."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    mounted = (
        os.geteuid() == 0 and not subprocess.run(mount, check=False, capture_output=True).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def room(folder: Path, nbytes: int, *, mounted: bool) -> Iterator[None]:
    """Leave `nbytes` of room in the folder."""
    if not mounted:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return
    filler = folder / "filler"
    with filler.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, shutil.disk_usage(folder).free - nbytes)
    try:
        yield
    finally:
        filler.unlink()


def attempt(data: Path, c: str, *, durable: bool) -> None:
    """Compute C."""
    options = Options(devices="host", tile=(128, 256, 256), host_memory="64MB")
    multiply(data / "A.npy", data / "A.npy", out=c, options=options, checkpoint=durable)


def fill_up(data: Path, disk: Path, form: str, tally: Tally, *, mounted: bool) -> None:
    """Try one format with every amount of room, plain and durable, and then with enough."""
    right = np.load(data / "A.npy") @ np.load(data / "A.npy")
    c = f"{disk}/{FORMATS[form]}"
    for durable in (False, True):
        for nbytes in ROOM:
            at = f"{form}{', durable' if durable else ''}, {nbytes} bytes of room"
            with room(disk, nbytes, mounted=mounted):
                try:
                    attempt(data, c, durable=durable)
                    tally.check(False, f"{at}: no error")
                except HdgemmError as error:
                    tally.counts["refused"] += 1
                    tally.check("\n" not in str(error).strip(), f"{at}: {error}")
                except BaseException as error:  # noqa: BLE001 - it is judged
                    tally.check(False, f"{at}: {error!r}")
                left = sorted(path.name for path in disk.iterdir() if path.name != "filler")
            if not durable:
                tally.check(not left, f"{at}: {left} are left")
        attempt(data, c, durable=durable)
        with open_stored(c) as computed:
            close = np.allclose(np.asarray(computed), right)
        tally.check(close, f"{form}: C is wrong once there is room")
        for path in disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=FORMATS, action="append")
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="hdgemm-full-") as name:
        data, disk = Path(name, "data"), Path(name, "disk").resolve()
        data.mkdir()
        disk.mkdir()
        np.save(data / "A.npy", np.random.default_rng(1).standard_normal((N, N)))
        with small_disk(disk) as mounted:
            tally.figures["full by"] = "a file system of 8 MB" if mounted else "RLIMIT_FSIZE"
            for form in asked.format or FORMATS:
                fill_up(data, disk, form, tally, mounted=mounted)
    return tally.end("full_disk", asked)


if __name__ == "__main__":
    sys.exit(main())
