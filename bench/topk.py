"""`hdgemm.topk` of embeddings against themselves, by turns with faiss's exact search.

    python -m bench.topk [--rows 30000] [--columns 768] [--k 10] [--repeats 5] [--peers PYTHON]

Each has a process of its own; `--peers` is an interpreter that has faiss. hdgemm reads the float32
file within 300 MB, faiss searches the matrix in RAM. Imports are not counted, nor is reading for
faiss. Both must find the same columns but for ties of rounding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY: Final = "300MB"
#: Fraction of the columns that may differ: rounding may swap products that are nearly equal.
_DIFFERENT: Final = 1e-3


def search(peer: str, k: int) -> None:
    """Search in this process; print the seconds and store the columns found."""
    if peer == "faiss":
        import faiss

        matrix = np.load("E.npy")
        began = time.perf_counter()
        index = faiss.IndexFlatIP(matrix.shape[1])
        index.add(matrix)
        _, found = index.search(matrix, k)
    else:
        from hdgemm import Options, topk

        options = Options(host_memory=MEMORY)
        began = time.perf_counter()
        _, found = topk("E.npy", "E.npy", k, trans_b=True, options=options)
    print(json.dumps({"seconds": time.perf_counter() - began}))
    np.save(f"{peer}.npy", found)


def _seconds(folder: Path, peer: str, python: str, k: int) -> float:
    from bench.harness import ROOT

    command = [python, "-P", str(ROOT / "bench" / "topk.py"), "--peer", peer, "--k", str(k)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["seconds"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Let both search by turns, and save the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--columns", type=int, default=768)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, default=Path("/tmp"), help="where the matrix goes")
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--peer", choices=("hdgemm", "faiss"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.peer:
        search(asked.peer, asked.k)
        return 0
    from bench.harness import data_folder, environment, save, spread

    where, ratios = environment(), []
    with data_folder(asked.data) as folder:
        shape = asked.rows, asked.columns
        np.save(folder / "E.npy", np.random.default_rng(0).standard_normal(shape, np.float32))
        for _ in range(asked.repeats):
            own = _seconds(folder, "hdgemm", sys.executable, asked.k)
            peer = _seconds(folder, "faiss", asked.peers, asked.k)
            ratios.append(peer / own)
            print(f"hdgemm {own:.2f} s, faiss {peer:.2f} s")
        found = [np.load(folder / f"{peer}.npy") for peer in ("hdgemm", "faiss")]
    different = float((found[0] != found[1]).mean())
    if different > _DIFFERENT:
        print(f"{different:.1%} of the columns differ")
        return 1
    results: dict[str, Any] = {"rows": asked.rows, "columns": asked.columns, "k": asked.k}
    save("topk", results | {"of_faiss": spread(ratios), "different": different}, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
