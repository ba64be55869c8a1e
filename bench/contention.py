"""Does the verdict name what is taken? `python -m bench.contention [memory disk core]`.

For each resource a second process hammers it while `hdgemm profile --quick` runs, and the
verdict's first sentences are printed. A quiet profile comes first: it is what the others are held
against. Every hammer ends by itself after a minute and a half, and with this process.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The longest that a hammer works, in seconds.
_MOST: Final = 90.0
#: What the verdict must name.
EXPECTED: Final = {"memory": "host_memory", "disk": "disk", "core": "cores"}


def hammer_memory(_folder: Path) -> None:
    """Copy 256 MB back and forth."""
    source, target = np.ones(32 << 20), np.ones(32 << 20)
    end = time.monotonic() + _MOST
    while time.monotonic() < end:
        np.copyto(target, source)


def hammer_disk(folder: Path) -> None:
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


def hammer_core(_folder: Path) -> None:
    """Count on one core, in its registers."""
    end = time.monotonic() + _MOST
    while time.monotonic() < end:
        for _ in range(100_000):
            pass


HAMMERS: Final = {"memory": hammer_memory, "disk": hammer_disk, "core": hammer_core}


@contextmanager
def hammering(name: str, folder: Path, count: int) -> Iterator[None]:
    """Let `count` processes hammer one resource meanwhile."""
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=HAMMERS[name], args=(folder,), daemon=True) for _ in range(count)
    ]
    for process in processes:
        process.start()
    time.sleep(2.0)
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def profiled(out: Path, folder: Path, device: str | None) -> dict[str, Any]:
    """Run `hdgemm profile --quick` in a process of its own and return its report."""
    command = [sys.executable, "-m", "hdgemm.cli", "profile", "--quick", "--out", str(out),
               "--folder", str(folder), *(["--device", device] if device else [])]  # fmt: skip
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report


def told(report: dict[str, Any]) -> str:
    """Return what the verdict says first, and the figures behind it."""
    found = [each["resource"] for each in report["interference"]]
    lines = [f"interference: {', '.join(found) or 'none'}"]
    lines += [f"  {line}" for line in report["verdict"]["text"][: len(found) + 1]]
    return "\n".join(lines)


def main() -> None:
    """Profile quietly, then once beside each hammer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("hammers", nargs="*", metavar="|".join(HAMMERS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, default=Path("contention-out"))
    parser.add_argument("--device")
    parser.add_argument("--count", type=int, default=1, help="hammering processes")
    args = parser.parse_args()
    unknown = [name for name in args.hammers if name not in HAMMERS]
    if unknown:
        parser.error(f"no hammer {', '.join(unknown)}; there are {', '.join(HAMMERS)}")
    print("quiet\n" + told(profiled(args.out / "quiet", args.folder, args.device)), flush=True)
    for name in args.hammers or HAMMERS:
        with hammering(name, args.folder, args.count):
            report = profiled(args.out / name, args.folder, args.device)
        found = [each["resource"] for each in report["interference"]]
        right = "named first" if found[:1] == [EXPECTED[name]] else "NOT named first"
        print(f"{name} hammered: {right}\n{told(report)}", flush=True)


if __name__ == "__main__":
    main()
