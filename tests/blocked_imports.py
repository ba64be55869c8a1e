"""Commands in processes that find none of the named libraries, as where no extra is installed."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

#: Libraries of all extras, but for pydantic, which typer needs.
EXTRAS: Final = (
    "alembic", "cupy", "dask", "distributed", "fastapi", "h5py", "httpx", "matplotlib", "mpi4py",
    "obstore", "prometheus_client", "psycopg", "pydantic_settings", "pynvml", "pyopencl",
    "sqlalchemy", "starlette", "uvicorn", "zarr",
)  # fmt: skip

_PROGRAM: Final = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in BLOCKED
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [Hiding if finder is PathFinder else finder for finder in sys.meta_path]
"""


def python_without(
    program: str, *arguments: object, blocked: Sequence[str] = EXTRAS, **more: object
) -> "subprocess.CompletedProcess[str]":
    """Run a program that finds none of the blocked libraries."""
    return subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {tuple(blocked)!r}\n{_PROGRAM}\n{program}",
         *map(str, arguments)],
        capture_output=True, text=True, timeout=240, check=False, **more,
    )  # fmt: skip


def hdgemm_without(
    *arguments: object, blocked: Sequence[str] = EXTRAS, **more: object
) -> "subprocess.CompletedProcess[str]":
    """Run `hdgemm` where none of the blocked libraries is installed."""
    return python_without(
        "from hdgemm.cli import main; main()", *arguments, blocked=blocked, **more
    )
