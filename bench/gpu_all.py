"""All measurements on one GPU, as one script of at most nine minutes.

    python -m bench.gpu_all [--device cuda:0] [--limit 540] [--only PART ...] [--dry-run]

Each part is a command with its own time limit; what does not fit into the rest of the time is
named in `left_out`. bench/results/gpu_all.json has the status, the seconds and the printed lines
of each part, and is written after each of them; parts that save figures of their own write them to
bench/results/ as well. `--dry-run` prints the commands.

| part | measures |
|---|---|
| native | native, hybrid and cuSOLVER factorisations of one array, with joules |
| emulated | cuBLAS's emulated double and single precision against the native ones |
| pipeline | products of plain and page-locked arrays against resident cuBLAS, cuBLASXt, CuPy |
| files | Cholesky, LU and QR from file to file against SciPy in RAM |
| hybrid | one product on GPU and host together against the GPU alone |
| linpack | LINPACK on the GPU |
| contention | contention measurements of the five stages |
| opencl | the search for OpenCL kernels on the GPU, where it has an OpenCL driver |
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final, NamedTuple

from bench.harness import environment, run, save

#: Lines of a part's output that are kept.
_LINES: Final = 60


class Part(NamedTuple):
    """A command, and its time limit in seconds."""

    name: str
    seconds: float
    command: tuple[str, ...]


def parts(device: str) -> tuple[Part, ...]:
    """Return the parts in order of importance: a machine may be taken away at any time."""
    opencl = device.replace("cuda", "opencl")
    hdgemm = ("-m", "hdgemm")
    return (
        Part("native", 80, ("-m", "bench.cuda_factor", "--device", device)),
        Part("emulated", 20, ("-m", "bench.cuda_emulated", "--device", device)),
        Part("pipeline", 180, ("-m", "bench.cuda", "--device", device, "--limit", "150")),
        Part("files", 70, (
            "-m", "bench.linalg", "--n", "12288", "--memory", "1GB", "--devices", device,
            "--routines", "lu_factor", "cholesky", "qr", "--repeats", "1", "--name", "linalg_cuda",
        )),
        Part("hybrid", 40, ("-m", "bench.cuda_hybrid", "--device", device)),
        Part("linpack", 50, (*hdgemm, "linpack", "--n", "32768", "--device", device, "--json")),
        Part("contention", 50, (*hdgemm, "profile", "--quick", "--device", device, "--json")),
        Part("opencl", 50, (*hdgemm, "tune", "--device", opencl, "--budget", "30s")),
    )  # fmt: skip


def main() -> int:
    """Run the parts; return 1 where one failed, 2 where nothing was run."""
    arguments = _arguments()
    chosen = [x for x in parts(arguments.device) if not arguments.only or x.name in arguments.only]
    if arguments.dry_run:
        for part in chosen:
            print(f"{part.name:12}{part.seconds:5.0f} s  python {' '.join(part.command)}")
        return 0
    where, deadline = environment(), time.perf_counter() + arguments.limit
    results: dict[str, Any] = {}
    left_out: list[str] = []
    for part in chosen:
        left = deadline - time.perf_counter()
        if left < part.seconds / 2:
            left_out.append(f"{part.name}: {left:.0f} s left, {part.seconds:.0f} s wanted")
        else:
            results[part.name] = _run(part, min(left, part.seconds))
        save("gpu_all", {"parts": results, "left_out": left_out}, where)
    for line in left_out:
        print(f"left out: {line}")
    failed = [name for name, one in results.items() if one["status"] != "done"]
    print(f"failed: {', '.join(failed)}" if failed else "all done")
    if not results:
        return 2
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_all", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds")
    parser.add_argument("--only", nargs="+", choices=[x.name for x in parts("cuda:0")])
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def _run(part: Part, seconds: float) -> dict[str, Any]:
    print(f"== {part.name}", flush=True)
    outcome = run([sys.executable, *part.command], timeout=seconds)
    lines = outcome.stdout.splitlines()[-_LINES:]
    errors = outcome.stderr.splitlines()[-_LINES:] if outcome.status != "done" else []
    print("\n".join([*lines, *errors]), flush=True)
    return {
        "command": " ".join(("python", *part.command)),
        "status": outcome.status,
        "seconds": outcome.seconds,
        "lines": lines,
        "errors": errors,
    }


if __name__ == "__main__":
    sys.exit(main())
