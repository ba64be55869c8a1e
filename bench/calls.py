"""Python calls of hdgemm in one call of a public function: calls, functions and files.

python -m bench.calls [--most 20] [--rooms]

The operands are 200 × 200 files. Each function is called twice before it is counted. Calls of all
threads that it starts count, except the one that samples memory: it calls as long as the run takes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import hdgemm

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

N: Final = 200
FUNCTIONS: Final[dict[str, Callable[[], Any]]] = {
    "matmul": lambda: hdgemm.matmul("A.npy", "B.npy", out="C.npy"),
    "lu_factor": lambda: hdgemm.linalg.lu_factor("A.npy", out="LU.npy"),
}
#: Name of the thread that samples the memory of the process.
SAMPLER: Final = "hdgemm-memory"
PACKAGE: Final = str(Path(hdgemm.__file__).parent)


def count(function: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Return how often each Python function of hdgemm is called, by file and name."""
    found: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        here = threading.current_thread().name != SAMPLER
        if here and event == "call" and code.co_filename.startswith(PACKAGE):
            found[code.co_filename[len(PACKAGE) + 1 :], code.co_qualname] += 1

    function()
    function()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=0, help="print the functions called most")
    parser.add_argument("--rooms", action="store_true", help="print the calls of each room")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        rng = np.random.default_rng(0)
        for name in "AB":
            np.save(name, rng.standard_normal((N, N)))
        for name, function in FUNCTIONS.items():
            found = count(function)
            files = {file for file, _ in found}
            print(f"{name}: {found.total()} calls, {len(found)} functions, {len(files)} files")
            for (file, called), times in found.most_common(asked.most):
                print(f"{times:6} {file} {called}")
            rooms: Counter[str] = Counter()
            for (file, _), times in found.items():
                rooms[file.rpartition("/")[0] or file] += times
            for room, times in rooms.most_common() if asked.rooms else ():
                print(f"{times:6} {room}")


if __name__ == "__main__":
    main()
