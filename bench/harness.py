"""What every measurement needs: who measured what where, fair turns, and a real memory limit."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from hdgemm.report import versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
_CGROUPS = Path("/sys/fs/cgroup")


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Return median, extremes and count of some measurements."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "count": len(values),
    }


def warm_memory(nbytes: int) -> None:
    """Use memory once and free it, so that no page is the first that the machine provides.

    A virtual machine may give free memory back to its host. Where it did, the first touch of 1 GB
    took 2.5 s instead of 0.1 s. Arrays in RAM are filled before a peer's clock starts.
    """
    with mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, nbytes, mmap.PAGESIZE):
            memory[page] = 1


def environment() -> dict[str, Any]:
    """Return the machine, the versions and the commit that a result belongs to."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    state = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m", _module(), *sys.argv[1:]]),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_before": os.getloadavg()[0],
        "versions": versions(),
        "commit": commit.stdout.strip() or None,
        "changed_files": bool(state.stdout.strip()),
    }


def save(name: str, results: dict[str, Any], where: dict[str, Any]) -> Path:
    """Write results and the `environment` they were measured in to bench/results/NAME.json."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"environment": where, **results}, indent=2) + "\n")
    print(f"written: {path.relative_to(ROOT)}")
    return path


def drop_cached(paths: Iterable[Path]) -> None:
    """Make the kernel forget the pages of some files, so that the next reader starts cold."""
    for path in paths:
        if path.exists():
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: ``"done"``, ``"killed"`` (for memory), ``"not finished"``, ``"failed"``.

    `peak_bytes` is the cgroup's highest use, page cache included; None without a cgroup.
    """

    status: str
    seconds: float
    peak_bytes: int | None
    stdout: str
    stderr: str


class MemoryCgroup:
    """A memory limit as a container sets it; as a context, the cgroup exists inside it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._v1 = (_CGROUPS / "memory" / "memory.limit_in_bytes").exists()
        parent = _CGROUPS / "memory" if self._v1 else _CGROUPS
        self._folder = parent / f"hdgemm-bench-{os.getpid()}"

    def __enter__(self) -> Self:
        if not self._v1:
            (_CGROUPS / "cgroup.subtree_control").write_text("+memory")
        self._folder.mkdir()
        limit = "memory.limit_in_bytes" if self._v1 else "memory.max"
        self._file(limit).write_text(str(self.limit_bytes))
        # Swap would make the limit a suggestion.
        swap, most = (
            ("memory.memsw.limit_in_bytes", str(self.limit_bytes))
            if self._v1
            else ("memory.swap.max", "0")
        )
        with contextlib.suppress(OSError):
            self._file(swap).write_text(most)
        return self

    def __exit__(self, *_: object) -> None:
        for _attempt in range(50):
            try:
                self._folder.rmdir()
            except OSError:
                time.sleep(0.1)
            else:
                return

    def run(self, command: Sequence[str], *, timeout: float) -> Outcome:
        """Run a command inside; kill its whole process group after `timeout` seconds."""
        kills = self._oom_kills()
        inside = ["sh", "-c", f'echo $$ > {self._file("cgroup.procs")} && exec "$@"', "sh"]
        outcome = run(inside + list(command), timeout=timeout)
        peak = "memory.max_usage_in_bytes" if self._v1 else "memory.peak"
        status = "killed" if self._oom_kills() > kills else outcome.status
        return Outcome(
            status,
            outcome.seconds,
            int(self._file(peak).read_text()) if self._file(peak).exists() else None,
            outcome.stdout,
            outcome.stderr,
        )

    def _file(self, name: str) -> Path:
        return self._folder / name

    def _oom_kills(self) -> int:
        text = self._file("memory.oom_control" if self._v1 else "memory.events").read_text()
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))


def run(command: Sequence[str], *, timeout: float) -> Outcome:
    """Run a command in a process group of its own; kill the group after `timeout` seconds."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
        status = "done" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        status = "not finished"
    # Without a counter of its own (old kernels) SIGKILL is how the kernel ends what it kills.
    if process.returncode == -signal.SIGKILL and status == "failed":
        status = "killed"
    return Outcome(status, time.perf_counter() - began, None, out, err)


@contextlib.contextmanager
def data_folder(parent: Path) -> Iterator[Path]:
    """Give a folder for matrices, removed afterwards."""
    folder = parent / f"bench-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0]).stem


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
