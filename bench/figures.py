"""Write the tables of docs/measured.md and the README's short one from bench/results/*.json.

python -m bench.figures
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench import figure_rows as rows_of
from bench.harness import RESULTS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEGIN: Final = "<!-- measured: written by python -m bench.figures from bench/results/*.json -->"
END: Final = "<!-- /measured -->"
#: Rows of the README's table: the newest of these results, and a part of its last row.
HEADLINES: Final = (
    (("file_to_file", "file_to_file_8192"), "files, n ="),
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
    "run_kills": "Runs killed",
    "factor_kills": "Factorisations killed",
    "row_kills": "Reductions of tall matrices killed",
    "cluster_kills": "Cluster: processes killed",
    "cluster_row_kills": "Cluster: workers killed in passes over rows",
    "mpi_kills": "MPI: ranks killed",
    "mpi_slab_kills": "MPI: ranks killed, by slabs",
    "cluster_mounts": "Cluster: workers that see other files",
    "cluster_frozen": "Cluster: workers stopped for a time",
    "disk_faults": "Failing disks",
    "full_disk": "Full disks",
    "store_race": "Two processes create one array",
    "slow_threads": "One function is slow",
    "hostile_files": "Damaged files",
    "memory_limits": "Memory limits",
    "plan_memory": "Plans and first steps within a cgroup",
    "service_kills": "Service: processes killed",
    "service_outage": "Service: database lost",
    "service_sockets": "Service: half-open connections",
    "service_upload_race": "Service: completions beside uploads",
    "service_schema": "Service: generated requests",
}


class Section(NamedTuple):
    """A result's place in docs/measured.md: heading, rows, heads of the columns of figures.

    Results with one title follow each other, in one table where they have the same heads. `about`
    returns what holds for all rows of a result, which then has a table of its own.
    """

    title: str
    rows: Callable[[dict[str, Any]], list[str]]
    heads: tuple[str, ...] = ("measured",)
    about: Callable[[dict[str, Any]], str] | None = None

    def table(self, name: str) -> tuple[str, ...]:
        """Return a key of the table that takes the result `name`: equal heads share one."""
        return (name,) if self.about else self.heads


_FACTORS: Final = Section(
    "Factorisations from file to file",
    rows_of.linalg,
    ("of SciPy in RAM", "of DGEMM in RAM", "of the cores' time in kernels"),
)
_FILES: Final = "Products from file to file"
_FORMATS: Final = Section(
    "File formats", rows_of.formats, ("of in-RAM `numpy.matmul`", "decompression")
)
_PEERS: Final = Section(
    "Factorisations by peers under one memory limit",
    rows_of.linalg_peers,
    ("seconds", "peak, MB", "residual"),
)
_PAIRS: Final = "Least squares, symmetric products, refined solutions"
_TASKS: Final = Section("Factorisations by tasks", rows_of.hybrid, ("Cholesky", "LU"))
_LINPACK: Final = Section("LINPACK", rows_of.linpack, ("of hpcc", "of DGEMM"))
_MPI: Final = Section("Systems over MPI", rows_of.scalapack)
_TALL: Final = Section(
    "Tall files",
    rows_of.tall,
    ("seconds", "of the bound", "MB added", "error/s[0]"),
    rows_of.tall_file,
)
_GPU: Final = "Products on an NVIDIA GPU"
_GPU_HEADS: Final = ("Tflop/s", "of cuBLAS")
_OPENCL: Final = "OpenCL devices, which are CPUs"
_SERVICE: Final = "Service"
#: Section of each result, by the name of its file in bench/results.
SECTIONS: Final = {
    "file_to_file": Section(_FILES, rows_of.file_to_file),
    "file_to_file_8192": Section(_FILES, rows_of.file_to_file),
    "host_goals_file-8192": Section(_FILES, rows_of.by_turns),
    "host_goals_file-16384": Section(_FILES, rows_of.by_turns),
    "host_goals_file-16384-burnt": Section(_FILES, rows_of.by_turns),
    "in_ram": Section("Products in RAM", rows_of.in_ram),
    "neighbour": Section(
        "Products against `numpy.matmul` beside another process",
        rows_of.neighbour,
        ("alone", "beside half a busy core"),
    ),
    "linalg": _FACTORS,
    "linalg_16384": _FACTORS,
    "linalg_16384_columns": _FACTORS,
    "host_goals_columns": _FACTORS,
    "linalg_cuda": _FACTORS,
    "linalg_lstsq": Section(_PAIRS, rows_of.lstsq),
    "linalg_syrk": Section(_PAIRS, rows_of.syrk),
    "linalg_refine": Section(_PAIRS, rows_of.refine),
    "linalg_peers": _PEERS,
    "linalg_peers_reversed": _PEERS,
    "hybrid_linalg": _TASKS,
    "hybrid_linalg_slab": _TASKS._replace(
        title="Factorisations by tasks: tasks against a resident slab"
    ),
    "hybrid_linalg_schedule": _TASKS,
    "hybrid_linalg_host": _TASKS,
    "linpack": _LINPACK,
    "linpack_ranks": _LINPACK,
    "linpack_large": _LINPACK,
    "linpack_overlap": Section(_LINPACK.title, rows_of.linpack_devices),
    "scalapack": _MPI,
    "scalapack_columns": _MPI,
    "mpi_reading": _MPI,
    "cluster_efficiency": Section("Cluster", rows_of.cluster),
    "cluster_rows": Section("Cluster", rows_of.cluster_rows),
    "cluster_load": Section("Cluster", rows_of.cluster_load),
    "cluster_virtual": Section("Cluster", rows_of.cluster_virtual),
    "formats": _FORMATS,
    "host_goals_hdf5": _FORMATS,
    "host_goals_zarr": _FORMATS,
    "host_goals_zarr-blosc": _FORMATS,
    "low_precision": Section(
        "Files of low precision",
        rows_of.low_precision,
        ("int8 to float64", "float16 to float32", "bfloat16 to float32"),
    ),
    "cuda": Section(_GPU, rows_of.cuda, _GPU_HEADS, rows_of.gpu),
    "cuda_cublasxt": Section(_GPU, rows_of.cublasxt, _GPU_HEADS),
    "opencl_kernel": Section(
        _OPENCL,
        rows_of.opencl_kernel,
        ("of `numpy.matmul`", "of CLBlast"),
        lambda _: "Kernel; CLBlast is not tuned",
    ),
    "opencl_pipeline": Section(_OPENCL, rows_of.opencl_pipeline),
    "split": Section("Several devices", rows_of.split),
    "tall": _TALL,
    "tall_600000": _TALL,
    "tall_2000000": _TALL,
    "tall_1000000": _TALL,
    "topk": Section("Largest entries of products", rows_of.topk),
    "durable_overhead": Section("Cost of a journal", rows_of.durable_overhead),
    "tile_checks_overhead": Section(
        "Time of products with checked tiles to the time without",
        rows_of.tile_checks,
        ("median", "best"),
    ),
    "overhead": Section("Overhead of the engine", rows_of.overhead),
    "planning": Section("Plans, up to 10⁹ per dimension", rows_of.planning),
    "service_load": Section(_SERVICE, rows_of.service_load, ("requests/s", "p50, ms", "p99, ms")),
    "service_transfer": Section(_SERVICE, rows_of.service_transfer),
    "campaign_service_queue": Section(_SERVICE, rows_of.service_queue),
    "campaign_hostile_json": Section(_SERVICE, rows_of.hostile_json),
}


#: Results that have rows of the same measurements: the newest row is shown.
SAME_ROWS: Final = (
    ("file_to_file", "file_to_file_8192", "host_goals_file-16384"),
    ("formats", "host_goals_hdf5", "host_goals_zarr", "host_goals_zarr-blosc"),
    ("linalg_16384_columns", "host_goals_columns"),
)


def campaigns() -> Iterator[str]:
    """Yield the table of the campaigns."""
    found = {name: result for name in CAMPAIGNS if (result := load(f"campaign_{name}")) is not None}
    (usual, _), *_ = Counter(map(_day, found.values())).most_common(1)
    yield from ("## Campaigns", "")
    yield f"`bench.campaigns.COMMAND`, on machines with 2 cores, {usual} where no other day is"
    yield from ("named; nothing was wrong where a row does not count it:", "")
    yield from ("| what | command | did |", "|---|---|---|")
    for name, result in found.items():
        command = _command(result["environment"]).removeprefix("bench.campaigns.")
        day = "" if _day(result) == usual else f"; {_day(result)}"
        yield f"| {CAMPAIGNS[name]} | `{command}` | {rows_of.campaign(result)}{day} |"
    yield ""


def measured() -> Iterator[str]:
    """Yield the lines of docs/measured.md: a table for each result, newest day first.

    Results with one title are together, at the day of the newest one.
    """
    found = {name: result for name in SECTIONS if (result := load(name)) is not None}
    (machine, _), *_ = Counter(map(_machine, found.values())).most_common(1)
    (versions, _), *_ = Counter(map(_versions, found.values())).most_common(1)
    yield from (f"On {machine}, with {versions}, where nothing else is named.", "")
    usual = {machine, versions}
    newest_first = sorted(found, key=lambda name: _day(found[name]), reverse=True)
    by_title: dict[str, list[str]] = {}
    for name in newest_first:
        by_title.setdefault(SECTIONS[name].title, []).append(name)
    for title, names in by_title.items():
        yield from (f"## {title}", "")
        for _, together in groupby(names, key=lambda name: SECTIONS[name].table(name)):
            yield from _table(list(together), found, usual)
    yield from campaigns()


def _table(names: list[str], found: dict[str, dict[str, Any]], usual: set[str]) -> Iterator[str]:
    """Yield the lines of results in one table: where each was measured, and the rows."""
    section = SECTIONS[names[0]]
    rows = {name: present for name in names if (present := _present_rows(name, found))}
    about = f"{section.about(found[names[0]])}: " if section.about else ""
    where = [_where(found[name], usual) for name in rows]
    yield from ([f"- {each}" for each in where] if where[1:] else [f"{about}{where[0]}:"])
    yield from ("", f"| what | {' | '.join(section.heads)} |")
    yield "|---" * (1 + len(section.heads)) + "|"
    yield from [row for present in rows.values() for row in present]
    yield ""


def _present_rows(name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rows of a result but those that were measured again later."""
    rows = SECTIONS[name].rows(found[name])
    others = {each for group in SAME_ROWS if name in group for each in group}
    later = [each for each in others & set(found) if _when(found[each]) > _when(found[name])]
    measured_again = {
        row.partition(" | ")[0] for each in later for row in SECTIONS[each].rows(found[each])
    }
    return [row for row in rows if row.partition(" | ")[0] not in measured_again]


def _when(result: dict[str, Any]) -> str:
    return str(result["environment"]["when"])


def _day(result: dict[str, Any]) -> str:
    """Return the day on which a result was measured."""
    return _when(result)[:10]


def _where(result: dict[str, Any], usual: set[str]) -> str:
    """Return the command, day and commit of a result, and where it was measured unless `usual`."""
    where = result["environment"]
    unusual = [words for words in (_machine(result), _versions(result)) if words not in usual]
    return ", ".join([f"`{_command(where)}`", *unusual, _day(result), where["commit"][:7]])


def _machine(result: dict[str, Any]) -> str:
    where = result["environment"]
    return f"{where['cores']} cores of {where['cpu'].replace('(R)', '')}"


def _command(where: dict[str, Any]) -> str:
    """Return the command without Python, folders of its machine and the name of its result."""
    dropped = r"^python -m | --data \S+| --(name|save)( \w[\w-]*)?"
    return re.sub(dropped, "", str(where["command"]))


def _versions(result: dict[str, Any]) -> str:
    versions = result["environment"]["versions"]
    return f"NumPy {versions['numpy']}, SciPy {versions['scipy']}"


def headlines() -> Iterator[str]:
    """Yield the lines of the README's table."""
    yield from ("| what | measured |", "|---|---|")
    for names, word in HEADLINES:
        found = {name: result for name in names if (result := load(name)) is not None}
        if found:
            newest = max(found, key=lambda name: _when(found[name]))
            section = SECTIONS[newest]
            yield _headline([x for x in section.rows(found[newest]) if word in x][-1], section)


def _headline(row: str, section: Section) -> str:
    """Return a row with one column of figures, which the heads of the columns follow."""
    if len(section.heads) == 1:
        return row
    what, *cells = row.strip("| ").split(" | ")
    figures = zip(cells, section.heads, strict=True)
    return f"| {what} | {', '.join(' '.join(figure) for figure in figures)} |"


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
