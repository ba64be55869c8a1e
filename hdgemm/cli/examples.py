"""Examples of each command, shown at the end of its help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: By the words of a command; "" is `hdgemm` itself.
_EXAMPLES: Final[dict[str, tuple[str, str]]] = {
    "": (
        "hdgemm multiply A.npy B.npy --out C.npy --host-memory 1.5GB",
        "hdgemm solve A.npy B.npy --out X.npy",
    ),
    "multiply": (
        "hdgemm multiply A.npy B.npy --out C.npy --host-memory 1.5GB",
        "hdgemm multiply A.npy F.h5::/g/B --out C.npy --beta 1 --c C.npy",
    ),
    "plan": (
        "hdgemm plan 40000 40000 40000 --host-memory 2GB",
        "hdgemm plan lu A.npy --host-memory 2GB --json",
    ),
    "devices": ("hdgemm devices", "hdgemm devices --check opencl:0"),
    "verify": (
        "hdgemm verify A.npy B.npy C.npy --rounds 60",
        "hdgemm verify A.npy LU.npy --lu",
    ),
    "random": (
        "hdgemm random 10000 10000 --out A.npy",
        "hdgemm random 20000 500 --out T.npy --dtype float32 --seed 7",
    ),
    "demo": (
        "hdgemm demo --size 300MB --host-memory 60MB",
        "hdgemm demo --device opencl:0 --out demo-opencl --keep",
    ),
    "tune": (
        "hdgemm tune --device opencl:0 --budget 5m",
        "hdgemm tune --dtype float32 --picture speeds.png",
    ),
    "profile": (
        "hdgemm profile --quick",
        "hdgemm profile --compare old/report.json new/report.json",
    ),
    "linpack": (
        "hdgemm linpack --n 20000",
        "mpiexec -n 4 hdgemm linpack --n 40000 --nb 192 --grid 2x2",
    ),
    "serve": (
        "hdgemm serve --root /data/matrices --memory 8GB",
        "hdgemm serve --port 8080 --data-dir jobs --device host --device cuda:0",
    ),
    "worker": (
        "hdgemm worker --data-dir jobs --root /data/matrices",
        "hdgemm worker --database-url postgresql://hdgemm@db/hdgemm --device opencl:0",
    ),
    "token": (
        "hdgemm token create --name ada --quota 10GB --max-jobs 5",
        "hdgemm token list --data-dir jobs",
    ),
    "job": ("hdgemm job submit A.npy B.npy", "hdgemm job list --status running"),
    "job submit": (
        "hdgemm job submit A.npy B.npy --host-memory 2GB --name first",
        "hdgemm job submit --process pca T.npy --set k=3 --output scores.npy",
    ),
    "job list": (
        "hdgemm job list --status running --status accepted",
        "hdgemm job list --name first --limit 10 --json",
    ),
    "job watch": ("hdgemm job watch 0f3a", "hdgemm job watch 0f3a --url http://host:8000"),
    "job cancel": ("hdgemm job cancel 0f3a", "hdgemm job cancel 0f3a --json"),
    "job fetch": ("hdgemm job fetch 0f3a C.npy", "hdgemm job fetch 0f3a U.npy --all"),
}


def epilog(command: str) -> str:
    """Return the last lines of a command's help."""
    return epilog_of(_EXAMPLES[command])


def epilog_of(examples: Sequence[str]) -> str:
    """Return examples as the last lines of a help; the backspace keeps click from wrapping them."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in examples)))
