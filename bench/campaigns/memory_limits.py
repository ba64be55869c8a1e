"""`host_memory` for every combination of format, dtype, beta, transposition, check and device.

python -m bench.campaigns.memory_limits [--case TEXT] [--seconds 240] [--go-on] [--save]

Each product runs in a process of its own. Its anonymous and shared pages are read from outside
every 2 ms; the pages that the run adds must not exceed the limit. An OpenCL device on the CPU has
its memory in the process, so that `device_memory` is added to the limit there. The process computes
small products first: libraries, threads, BLAS's buffers and an OpenCL runtime's compiler belong to
no run.

Each case is a line on standard error. After `--seconds`, or Ctrl-C, no further case begins;
`--go-on` measures those that the saved results of the same commit lack.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.campaigns.tally import Tally, add_save
from bench.harness import RESULTS, environment
from hdgemm import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

N: Final = 2000
LIMIT: Final = 60_000_000
#: What an OpenCL device may take beside it: one that runs on the CPU has its memory in the process.
DEVICE_MEMORY: Final = 40_000_000

CHILD: Final = """
import sys
import numpy as np
import hdgemm

folder, limit, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
options = {"devices": device, "host_memory": limit}
np.save(folder + "/small.npy", np.ones((64, 64)))
for line in sys.stdin:
    call = eval(line)
    for dtype in ("float64", "float32") if "x4.npy" in line else ("float64",):
        square = np.ones((1500, 1500), dtype)
        tile = (512, 512, 512)
        hdgemm.matmul(square, square, options=hdgemm.Options(devices=device, tile=tile))
    del square
    for small in ("small.npy", "small.zarr", "small.h5::/x"):
        if small[5:8] in line:
            small = folder + "/" + small
            out = folder + "/small_out.npy"
            hdgemm.multiply(small, small, out=out, options=hdgemm.Options(**options))
    settings = hdgemm.Options(**options, **call.pop("options", {}))
    print("ready", flush=True)
    sys.stdin.readline()
    hdgemm.multiply(**call, options=settings)
    print("done", flush=True)
"""


def own_bytes(pid: int) -> int:
    """Return the anonymous and shared pages of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    counted = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(counted))


def make_operands(folder: Path) -> None:
    """Write the same matrix in every format, and small ones."""
    import h5py
    import zarr

    x = np.random.default_rng(0).standard_normal((N, N))
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", x[::-1])
    np.save(folder / "f.npy", np.asfortranarray(x))
    np.save(folder / "x4.npy", x.astype("float32"))
    for name, part, size in (("x", x, 256), ("small", x[:64, :64], 32)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=part, chunks=(size, size), compression="gzip")
            file.create_dataset("plain", data=part)
        zarr.create_array(store=folder / f"{name}.zarr", data=part, chunks=(size, size))


@contextlib.contextmanager
def measured(folder: Path, limit: int, device: str = "host") -> Iterator[Callable[..., int]]:
    """Start a process; give a function that runs `multiply` there and returns its peak in bytes."""
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(folder), str(limit), device],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    orders, answers = child.stdin, child.stdout

    def say(text: str) -> None:
        orders.write(text + "\n")
        orders.flush()

    def peak(**call: Any) -> int:
        say(repr(call))
        assert answers.readline() == "ready\n"
        before = most = own_bytes(child.pid)
        say("go")
        done = threading.Event()
        thread = threading.Thread(target=lambda: (answers.readline(), done.set()))
        thread.start()
        while not done.wait(0.002):
            most = max(most, own_bytes(child.pid))
        thread.join()
        return most - before

    with child:
        yield peak
        orders.close()
    assert child.returncode == 0


def combinations(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a name and the arguments of each product."""
    operands = {
        "npy": "x.npy", "Fortran order": "f.npy", "float32": "x4.npy", "Zarr": "x.zarr",
        "gzip in HDF5": "x.h5::/x", "HDF5": "x.h5::/plain",
    }  # fmt: skip
    for form, beta, trans, check in itertools.product(
        operands, (0.0, 0.5), (False, True), (None, "tiles")
    ):
        call: dict[str, Any] = {"a": f"{folder}/{operands[form]}", "b": f"{folder}/y.npy"}
        if beta:
            call |= {"beta": beta, "c": f"{folder}/f.npy"}
        if check:
            call["options"] = {"verify": check}
        name = f"{form}, beta {beta}, {'transposed' if trans else 'as is'}, check {check}"
        yield name, call | {"trans_a": trans, "trans_b": trans, "out": f"{folder}/out.npy"}
    outputs = {"HDF5": "out.h5::C", "Zarr": "out.zarr", "raw": f"out.bin::{N}x{N}:float32"}
    for (form, out), beta in itertools.product(outputs.items(), (0.0, 0.5)):
        call = {"a": f"{folder}/x4.npy", "b": f"{folder}/x4.npy", "out": f"{folder}/{out}"}
        old = {"beta": beta, "c": f"{folder}/x4.npy"} if beta else {}
        yield f"to {form}, beta {beta}", call | old


def on_devices(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the combinations on the host and on the first OpenCL device, each with its device."""
    names = [info.name for info in devices() if info.usable and info.name.startswith("opencl")]
    for case, call in combinations(folder):
        yield "host", f"host: {case}", call
    for device in names[:1]:
        for case, call in combinations(folder):
            options = call.get("options", {}) | {"device_memory": DEVICE_MEMORY}
            yield device, f"{device}: {case}", call | {"options": options}


def saved_peaks(limit: int) -> dict[str, int]:
    """Return the peaks that are saved for this commit and limit, in bytes by case."""
    try:
        saved = json.loads((RESULTS / "campaign_memory_limits.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    same = saved["environment"]["commit"] == environment()["commit"] and saved["limit"] == limit
    return saved["peaks"] if same else {}


def measure_all(folder: Path, asked: argparse.Namespace, peaks: dict[str, int]) -> int:
    """Measure the cases that `peaks` lacks, while there is time; return how many it lacks then."""
    until, left = time.monotonic() + asked.seconds, 0
    for device, case, call in on_devices(folder):
        if asked.case not in case or case in peaks:
            continue
        if left or time.monotonic() > until:
            left += 1
            continue
        began = time.monotonic()
        try:
            with measured(folder, asked.limit, device) as peak:
                peaks[case] = peak(**call)
        except KeyboardInterrupt:
            left += 1
            continue
        seconds = time.monotonic() - began
        print(f"{case}: {peaks[case]:,} bytes, {seconds:.1f} s", file=sys.stderr, flush=True)
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all combinations; cases that are left are counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--case", default="", help="only names with this text")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--go-on", action="store_true", help="only cases that are not saved yet")
    add_save(parser)
    asked = parser.parse_args(arguments)
    tally = Tally()
    peaks = saved_peaks(asked.limit) if asked.go_on else {}
    with tempfile.TemporaryDirectory(prefix="hdgemm-memory-") as name:
        make_operands(Path(name))
        tally.figures |= {
            "limit": asked.limit, "left": measure_all(Path(name), asked, peaks), "peaks": peaks,
        }  # fmt: skip
    for case, peak in peaks.items():
        allowed = asked.limit + (0 if case.startswith("host") else DEVICE_MEMORY)
        tally.check(peak <= allowed, f"{case}: {peak} bytes of {allowed}")
    return tally.end("memory_limits", asked)


if __name__ == "__main__":
    sys.exit(main())
