"""Write the tables of docs/measured.md and the README's short one from bench/results/*.json.

python -m bench.figures
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from bench import figure_rows as rows_of
from bench.harness import RESULTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEGIN: Final = "<!-- measured: written by python -m bench.figures from bench/results/*.json -->"
END: Final = "<!-- /measured -->"
#: Rows of the README's table: the newest of these results, and a part of its last row.
HEADLINES: Final = (
    (("file_to_file", "file_to_file_8192", "file_to_file_16384"), "files, n ="),
    (("linalg", "linalg_16384"), "lu_factor"),
    (("in_ram",), "n = 8192 |"),
    (("cuda",), "hdgemm: n=32768, page-locked"),
    (("durable_overhead",), "a journal"),
)


def load(name: str) -> dict[str, Any] | None:
    """Return one result, None where it was not measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


#: Titles of the campaigns, by their names.
CAMPAIGNS: Final = {
    "run_kills": "Runs that were killed",
    "factor_kills": "Factorisations that were killed",
    "row_kills": "Reductions of tall matrices that were killed",
    "cluster_kills": "Cluster: processes that were killed",
    "cluster_row_kills": "Cluster: workers killed in passes over rows",
    "mpi_kills": "MPI: ranks that were killed",
    "mpi_slab_kills": "MPI: ranks killed in factorisations by slabs",
    "cluster_mounts": "Cluster: workers that see other files",
    "cluster_frozen": "Cluster: workers that are stopped and go on",
    "disk_faults": "Disks that fail",
    "full_disk": "Disks that are full",
    "store_race": "Two processes create one array",
    "slow_threads": "One function is slow",
    "hostile_files": "Damaged files",
    "memory_limits": "Memory limits",
    "plan_memory": "Plans and first steps within a cgroup",
    "service_kills": "Service: processes killed",
    "service_outage": "Service: database lost",
    "service_sockets": "Service: half-open connections",
    "service_upload_race": "Service: completions beside parts of an upload",
    "service_schema": "Service: generated requests",
}
#: Title and rows of each part of docs/measured.md, by the name of its file in bench/results.
SECTIONS: Final[dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]]] = {
    "file_to_file": ("Products from file to file", rows_of.file_to_file),
    "file_to_file_8192": ("Products from file to file, n = 8192", rows_of.file_to_file),
    "file_to_file_16384": ("Products from file to file, n = 16384", rows_of.file_to_file),
    "file_to_file_neighbour": (
        "Products from file to file beside a process that burns half a core",
        rows_of.file_to_file,
    ),
    "in_ram": ("Products in RAM", rows_of.in_ram),
    "neighbour": ("Products beside another process", rows_of.neighbour),
    "linalg": ("Factorisations from file to file", rows_of.linalg),
    "linalg_16384": ("Factorisations from file to file, larger matrices", rows_of.linalg),
    "linalg_16384_columns": ("Factorisations from file to file, column-major", rows_of.linalg),
    "linalg_cuda": ("Factorisations from file to file, updated by an NVIDIA GPU", rows_of.linalg),
    "linalg_lstsq": ("Least squares from a file of 2,000,000×500", rows_of.lstsq),
    "linalg_syrk": ("Symmetric products from files", rows_of.syrk),
    "linalg_refine": ("Solutions refined from single precision", rows_of.refine),
    "linalg_peers": ("Factorisations by peers under one memory limit", rows_of.linalg_peers),
    "linalg_peers_reversed": ("LU of a permutation matrix by peers", rows_of.linalg_peers),
    "hybrid_linalg": ("Factorisations by tasks: devices", rows_of.hybrid),
    "hybrid_linalg_slab": (
        "Factorisations by tasks: tasks against a resident slab",
        rows_of.hybrid,
    ),
    "hybrid_linalg_schedule": ("Factorisations by tasks: schedules", rows_of.hybrid),
    "hybrid_linalg_host": ("Factorisations by tasks: the host", rows_of.hybrid),
    "linpack": ("LINPACK", rows_of.linpack),
    "linpack_ranks": ("LINPACK on two processes", rows_of.linpack),
    "linpack_large": ("LINPACK, larger systems", rows_of.linpack),
    "linpack_overlap": (
        "LINPACK: devices, and overlaps: speed to the grid's first line, part of phases hidden",
        rows_of.linpack,
    ),
    "scalapack": ("Systems over MPI, against ScaLAPACK", rows_of.scalapack),
    "scalapack_columns": ("Systems over MPI, against ScaLAPACK, 2×1", rows_of.scalapack),
    "mpi_reading": ("Operands over MPI, against the disk", rows_of.scalapack),
    "cluster_efficiency": ("Cluster", rows_of.cluster),
    "cluster_rows": ("Passes over rows on a cluster", rows_of.cluster_rows),
    "cluster_load": ("Cluster: what a block costs", rows_of.cluster_load),
    "cluster_virtual": ("Cluster of 1,000 workers, simulated", rows_of.cluster_virtual),
    "formats": ("File formats", rows_of.formats),
    "formats_large": ("File formats, larger matrices", rows_of.formats),
    "low_precision": ("Files of low precision", rows_of.low_precision),
    "cuda": ("Products on an NVIDIA GPU", rows_of.cuda),
    "cuda_cublasxt": ("Products on an NVIDIA GPU against cuBLASXt, n = 16384", rows_of.cublasxt),
    "opencl_kernel": ("OpenCL kernel; CLBlast is not tuned", rows_of.opencl_kernel),
    "opencl_pipeline": ("OpenCL pipeline", rows_of.opencl_pipeline),
    "split": ("Several devices", rows_of.split),
    "tall": ("Tall files", rows_of.tall),
    "tall_600000": ("Tall files of 2.4 GB", rows_of.tall),
    "tall_2000000": ("Tall files of 8 GB", rows_of.tall),
    "tall_1000000": ("Tall files of 16 GB", rows_of.tall),
    "topk": ("Largest entries of products", rows_of.topk),
    "durable_overhead": ("Cost of a journal", rows_of.durable_overhead),
    "tile_checks_overhead": (
        "Time of products with checked tiles to the time without",
        rows_of.tile_checks,
    ),
    "overhead": ("Overhead of the engine", rows_of.overhead),
    "planning": ("Plans, up to 10⁹ per dimension", rows_of.planning),
    "service_load": ("Service: requests", rows_of.service_load),
    "service_transfer": ("Service: transfers", rows_of.service_transfer),
    "campaign_service_queue": ("Service: queue", rows_of.service_queue),
    "campaign_hostile_json": ("Service: hostile JSON", rows_of.hostile_json),
}


#: Results of which some rows were measured again later, with the names of the later results.
SUPERSEDED_BY: Final = {"file_to_file": ("file_to_file_8192", "file_to_file_16384")}


def campaigns() -> Iterator[str]:
    """Yield the table of the campaigns."""
    yield from (
        "## Campaigns",
        "",
        "`python -m bench.campaigns.COMMAND`, on machines with 2 cores:",
    )
    yield from ("", "| what | command | did | measured | date |", "|---|---|---|---|---|")
    for name, title in CAMPAIGNS.items():
        if (result := load(f"campaign_{name}")) is not None:
            where = result["environment"]
            command = _command(where).partition("campaigns.")[2]
            yield f"| {title} | `{command}` | {rows_of.campaign(result)} | {where['when'][:10]} |"
    yield ""


def measured() -> Iterator[str]:
    """Yield the lines of docs/measured.md: a table for each result, newest day first."""
    found = {name: result for name in SECTIONS if (result := load(name)) is not None}
    dated = [result for result in found.values() if "environment" in result]
    (machine, _), *_ = Counter(map(_machine, dated)).most_common(1)
    (versions, _), *_ = Counter(map(_versions, dated)).most_common(1)
    yield from (f"On {machine}, with {versions}, where nothing else is named.", "")
    usual = {machine, versions}
    for name in sorted(found, key=lambda name: _day(found[name]), reverse=True):
        yield from (f"## {SECTIONS[name][0]}", "", f"{_where(name, found[name], usual)}:", "")
        yield from ("| what | measured |", "|---|---|", *_present_rows(name, found), "")
    yield from campaigns()


def _present_rows(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rows of a result but those that a later one supersedes."""
    rows = SECTIONS[name][1](found[name])
    later = [each for each in SUPERSEDED_BY.get(name, ()) if found.get(each) is not None]
    measured_again = {
        row.partition(" | ")[0] for each in later for row in SECTIONS[each][1](found[each])
    }
    return [row for row in rows if row.partition(" | ")[0] not in measured_again]


def _day(result: dict[str, Any]) -> str:
    """Return the day on which a result was measured; old ones without it come last."""
    return str(result.get("environment", {}).get("when", ""))[:10]


def _where(name: str, result: dict[str, Any], usual: set[str]) -> str:
    """Return the command, day and commit of a result, and where it was measured unless `usual`."""
    if (where := result.get("environment")) is None:
        return f"`python -m bench.{name}`, before 2026-11-22"
    unusual = [words for words in (_machine(result), _versions(result)) if words not in usual]
    return ", ".join([f"`{_command(where)}`", *unusual, _day(result), where["commit"][:7]])


def _machine(result: dict[str, Any]) -> str:
    where = result["environment"]
    return f"{where['cores']} cores of {where['cpu'].replace('(R)', '')}"


def _command(where: dict[str, Any]) -> str:
    """Return the command without folders of its machine and the name of its result."""
    return re.sub(r" --data \S+| --(name|save)( \w+)?", "", str(where["command"]))


def _versions(result: dict[str, Any]) -> str:
    versions = result["environment"]["versions"]
    return f"NumPy {versions['numpy']}, SciPy {versions['scipy']}"


def headlines() -> Iterator[str]:
    """Yield the lines of the README's table."""
    yield from ("| what | measured |", "|---|---|")
    for names, word in HEADLINES:
        found = {name: result for name in names if (result := load(name)) is not None}
        if found:
            newest = max(found, key=lambda name: str(found[name]["environment"]["when"]))
            yield [row for row in SECTIONS[newest][1](found[newest]) if word in row][-1]


#: The pages with measured figures, and what writes them.
PAGES: Final[dict[Path, Callable[[], Iterator[str]]]] = {
    ROOT / "README.md": headlines,
    ROOT / "docs" / "measured.md": measured,
}


def page_with(page: Path, lines: Iterator[str]) -> str:
    """Return the text of a page with these lines between its two marks."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN, 1)
    _, after = rest.split(END, 1)
    text = "\n".join(lines).rstrip()
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    """Write all tables."""
    for page, lines in PAGES.items():
        page.write_text(page_with(page, lines()), encoding="utf-8")
        print(f"{page.name}: figures written")


if __name__ == "__main__":
    main()
