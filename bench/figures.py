"""Write the README's table of figures from bench/results/*.json, and from nothing else.

python -m bench.figures
"""

from __future__ import annotations

import json
from typing import Any

from bench.harness import RESULTS, ROOT

BEGIN, END = "<!-- measured:", "<!-- /measured -->"


def load(name: str) -> dict[str, Any] | None:
    """Return one result, None where it was not measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def file_to_file(result: dict[str, Any]) -> list[str]:
    """Return the rows of files multiplied under a limit."""
    rows = []
    for case in result["cases"].values():
        share = case["share_of_in_ram"]
        what = f"files, n = {case['n']}, {case['host_memory'] / 1e6:.0f} MB"
        limit = case["cgroup_limit"] / 1e6
        peaks = [run["cgroup_peak_bytes"] / 1e6 for run in case["hdgemm"] if "report" in run]
        if share is not None:
            best = max(run["gflops"] for run in case["hdgemm"] if "gflops" in run)
            rows.append(
                f"| {what} | {share['median']:.3f} of in-RAM `numpy.matmul`"
                f" (best {share['max']:.3f}, {best:.0f} GFLOP/s);"
                f" cgroup peak {max(peaks):.0f} of {limit:.0f} MB |"
            )
        for name, peer in case["peers"].items():
            speed = f"{peer['gflops']:.1f} GFLOP/s" if "gflops" in peer else peer["status"]
            rows.append(f"| the same by `{name}` | {speed} after {peer['wall_seconds']:.0f} s |")
    return rows


def in_ram(result: dict[str, Any]) -> list[str]:
    """Return the rows of matrices in RAM."""
    rows = [
        f"| in RAM, n = {n} | {size['share_best']:.3f} of `numpy.matmul` (best),"
        f" {size['share_median']:.3f} (median) |"
        for n, size in result["sizes"].items()
    ]
    tiny = result["overhead"]
    added = tiny["added_microseconds"]
    rows.append(
        f"| in RAM, n = {tiny['n']} | {added['median']:.1f} µs added to `numpy.matmul`"
        f" (best {added['min']:.1f}) |"
    )
    return rows


def opencl_pipeline(result: dict[str, Any]) -> list[str]:
    """Return the row of the OpenCL pipeline."""
    part = result["device_memory"] / result["data_bytes"]
    return [
        (
            f"| OpenCL pipeline, n = {result['n']}, device memory {part:.3f} of the data"
            f" | {result['share_best']:.3f} of its own kernel on resident data |"
        )
    ]


SECTIONS = {"file_to_file": file_to_file, "in_ram": in_ram, "opencl_pipeline": opencl_pipeline}


def section() -> str:
    """Return the table with the command and machine behind each part."""
    lines = [f"{BEGIN} written by python -m bench.figures from bench/results/*.json -->"]
    for name, rows in SECTIONS.items():
        result = load(name)
        if result is None:
            continue
        where = result["environment"]
        versions = where["versions"]
        lines += [
            (
                f"`{where['command']}` on {where['cores']} cores of {where['cpu']},"
                f" NumPy {versions['numpy']}, SciPy {versions['scipy']}, {where['when'][:10]}:"
            ),
            "",
            "| what | measured |",
            "|---|---|",
            *rows(result),
            "",
        ]
    if len(lines) == 1:
        lines.append("No figures yet.")
    return "\n".join(lines).rstrip() + f"\n{END}"


def main() -> None:
    """Replace the part of the README between the two marks."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    readme.write_text(before + section() + after)
    print("README.md: figures written")


if __name__ == "__main__":
    main()
