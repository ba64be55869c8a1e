"""Campaign: whether a profile names the resource that another process takes.

    python -m bench.contention --repeats 5

By turns a second process loads memory, the disk or a core, or nothing does, while this machine is
profiled. The first resource that the report names must be the loaded one, and none without a load.
The first turn of each load is `hdgemm profile --quick`; the others run the same steps with fewer
products (`--whole`: all turns `--quick`). The load of other processes just before a turn is
recorded, and turns that began under such load are counted apart.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.harness import environment, save
from hdgemm.profiling import profile
from hdgemm.profiling.other_load import LoadMeter
from hdgemm.profiling.session import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds after which a load ends by itself; it also ends with this process.
_MOST: Final = 120.0
#: The resource that must be named first.
EXPECTED: Final = {"none": None, "memory": "host_memory", "disk": "disk", "core": "cores"}
#: A quick profile with fewer products.
SHORT: Final = replace(QUICK, window=0.05, rounds=1, run=0.1, ladder=0.5, repeats=(1, 1))
#: Cores that others may use on a quiet machine, and seconds to wait for it.
_QUIET: Final = 0.25
_PATIENCE: Final = 10.0


def load_memory(_folder: Path) -> None:
    """Copy 256 MB back and forth."""
    source, target = np.ones(32 << 20), np.ones(32 << 20)
    end = time.monotonic() + _MOST
    while time.monotonic() < end:
        np.copyto(target, source)


def load_disk(folder: Path) -> None:
    """Write a file of 256 MB to the disk again and again."""
    block = os.urandom(8 << 20)
    end = time.monotonic() + _MOST
    with tempfile.TemporaryFile(dir=folder) as stream:
        while time.monotonic() < end:
            stream.seek(0)
            for _ in range(32):
                stream.write(block)
                stream.flush()
                os.fsync(stream.fileno())
                if time.monotonic() > end:
                    return


def load_core(_folder: Path) -> None:
    """Count on one core, without memory traffic."""
    end = time.monotonic() + _MOST
    while time.monotonic() < end:
        for _ in range(100_000):
            pass


LOADS: Final = {"memory": load_memory, "disk": load_disk, "core": load_core}


@contextmanager
def loaded(name: str, folder: Path, count: int) -> Iterator[None]:
    """Load one resource with `count` processes within the context; none for ``"none"``."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=LOADS[name], args=(folder,), daemon=True)
        for _ in range(count if name in LOADS else 0)
    ]
    for process in processes:
        process.start()
    if processes:
        time.sleep(2.0)
    if not all(process.is_alive() for process in processes):
        raise SystemExit(f"the {name} load ended early: nothing would be measured")
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def profiled(out: Path, args: argparse.Namespace, *, whole: bool) -> dict[str, Any]:
    """Profile in a process of its own, by the command line, and return the report."""
    module = ["hdgemm", "profile", "--quick"] if whole else ["bench.contention", "--short"]
    command = [sys.executable, "-m", *module, "--out", str(out), "--folder", str(args.folder)]
    if args.device:
        command += ["--device", args.device]
    subprocess.run(
        command, check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report


def quiet(folder: Path) -> float:
    """Wait a while for a quiet machine; return the cores that others use."""
    end = time.monotonic() + _PATIENCE
    while True:
        meter = LoadMeter(folder)
        time.sleep(1.0)
        busy = meter.read().cores
        if busy < _QUIET or time.monotonic() > end:
            return busy


def turn(name: str, number: int, args: argparse.Namespace) -> dict[str, Any]:
    """Profile once beside a load; print and return whether the report named it."""
    before = quiet(args.folder)
    began = time.perf_counter()
    with loaded(name, args.folder, args.count):
        report = profiled(args.out / f"{name}-{number}", args, whole=args.whole or number == 0)
    named = [each["resource"] for each in report["interference"]]
    first = named[0] if named else None
    row = {
        "load": name, "named": named, "right": first == EXPECTED[name],
        "others_before": before, "seconds": time.perf_counter() - began,
        "said": report["verdict"]["text"][: max(1, len(named))],
    }  # fmt: skip
    word = "right" if row["right"] else "WRONG"
    print(f"{name:7} {word}: {', '.join(named) or 'none'}; others before: {before:.2f} cores; "
          f"{row['seconds']:.0f} s\n    {row['said'][0]}", flush=True)  # fmt: skip
    return row


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count right reports by load, in all and of turns that began on a quiet machine."""
    found = {}
    for name in dict.fromkeys(row["load"] for row in rows):
        own = [row for row in rows if row["load"] == name]
        calm = [row for row in own if row["others_before"] < _QUIET]
        found[name] = {
            "right": sum(row["right"] for row in own), "turns": len(own),
            "right_on_quiet_machine": sum(row["right"] for row in calm), "quiet_turns": len(calm),
        }  # fmt: skip
    return found


def main() -> None:
    """Measure all loads by turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("loads", nargs="*", metavar="|".join(EXPECTED))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="every turn a whole --quick profile")
    parser.add_argument("--short", action="store_true", help="one short profile, without a load")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="keep the reports here")
    parser.add_argument("--device")
    parser.add_argument("--count", type=int, default=1, help="processes that load the resource")
    parser.add_argument("--save", action="store_true", help="write bench/results/contention.json")
    args = parser.parse_args()
    unknown = [name for name in args.loads if name not in EXPECTED]
    if unknown:
        parser.error(f"no load {', '.join(unknown)}; there are {', '.join(EXPECTED)}")
    if args.short:
        profile(args.device, effort=SHORT, folder=args.folder).save(args.out)
        return
    where = environment()
    with tempfile.TemporaryDirectory() as scratch:
        args.out = args.out or Path(scratch)
        rows = [
            turn(name, number, args)
            for number in range(args.repeats)
            for name in args.loads or EXPECTED
        ]
    for name, each in counts(rows).items():
        print(f"{name:7} right {each['right']} of {each['turns']}; began on a quiet machine: "
              f"{each['right_on_quiet_machine']} of {each['quiet_turns']}")  # fmt: skip
    if args.save:
        save("contention", {"counts": counts(rows), "turns": rows}, where)


if __name__ == "__main__":
    main()
