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


def opencl_kernel(result: dict[str, Any]) -> list[str]:
    """Return the rows of the OpenCL kernel on resident data."""
    rows = []
    for name, dtype in sorted(key.split() for key in result if key != "environment"):
        measured = result[f"{name} {dtype}"]
        for n, size in measured["sizes"].items():
            peers = ", ".join(
                f"{ratio:.2f} of {'`numpy.matmul`' if peer == 'numpy' else 'CLBlast, untuned'}"
                for peer, ratio in size["kernel_to"].items()
            )
            platform = measured["platform"].split("(")[0].strip()
            rows.append(f"| OpenCL kernel, {platform}, {dtype}, n = {n} | {peers} |")
    return rows


def split(result: dict[str, Any]) -> list[str]:
    """Return the rows of several devices on one product."""
    rows = []
    for name, measured in result["real"].items():
        ratio, imbalance = measured["of_best_alone"], measured["imbalance"]
        rows.append(
            f"| {name} of {result['device']}, n = {result['n']} | {ratio['median']:.3f} of the best"
            f" alone; {100 * imbalance['median']:.1f} % of the run apart at the end |"
        )
    worst = min(case["learned"]["of_best_static"] for case in result["simulated"].values())
    rows.append(
        f"| a device 1:1 to 1:100 as fast, steady or not, in virtual time | at least {worst:.3f} of"
        " the best fixed split |"
    )
    return rows


def durable_overhead(result: dict[str, Any]) -> list[str]:
    """Return the row of what a journal costs."""
    ratio = result["ratio"]
    return [
        (
            f"| a journal, files, n = {result['n']}, {result['memory']} | {ratio['median']:.3f} of"
            f" the time without ({ratio['min']:.3f}–{ratio['max']:.3f}) |"
        )
    ]


def tile_checks(result: dict[str, Any]) -> list[str]:
    """Return the rows of what checking each tile costs."""
    wheres = {"in_ram": "in RAM", "file_to_file": "files"}
    return [
        f'| `verify="tiles"`, {text}, n = {n} | {measured["ratio"]["median"]:.3f} of the time'
        f" without (median of pairs), {measured['ratio_of_best']:.3f} (best against best) |"
        for where, text in wheres.items()
        for n, measured in result[where].items()
    ]


def formats(result: dict[str, Any]) -> list[str]:
    """Return the rows of the file formats."""
    rows = []
    for name, measured in result["formats"].items():
        what = f"{name} files, n = {result['n']}, {result['host_memory'] / 1e6:.0f} MB"
        if "share_of_in_ram" not in measured:
            rows.append(f"| {what} | {measured['runs'][0]['status']} |")
            continue
        share = measured["share_of_in_ram"]
        decoding = measured.get("decompression_seconds")
        cost = "" if decoding is None else f"; decompression {decoding:.1f} s of load1"
        rows.append(
            f"| {what} | {share['median']:.3f} of in-RAM `numpy.matmul` (best {share['max']:.3f})"
            f"{cost} |"
        )
    return rows


SECTIONS = {
    "file_to_file": file_to_file,
    "in_ram": in_ram,
    "opencl_kernel": opencl_kernel,
    "opencl_pipeline": opencl_pipeline,
    "split": split,
    "durable_overhead": durable_overhead,
    "formats": formats,
    "tile_checks_overhead": tile_checks,
}


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
