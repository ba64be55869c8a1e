"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hdgemm.errors import DeviceError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.options import Options


def complete_device(incomplete: str) -> list[str]:
    """Return the usable devices whose names begin so, for the shell's completion."""
    from hdgemm.pipeline.devices.registry import list_devices

    try:
        names = ["auto", *(info.name for info in list_devices() if info.usable)]
    except DeviceError:
        names = ["auto", "host"]
    return [name for name in names if name.startswith(incomplete)]


Strategy = Literal["initial", "double-buffering", "data-reuse", "data-placement", "hybrid"]
StrategyName = Annotated[
    Strategy | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="initial, double-buffering, data-reuse, data-placement (default) or hybrid: how much "
        "the pipeline overlaps and reuses.",
    ),
]

HostMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that the run may add to the process, 1.5GB. Default: 60 % of what is free.",
    ),
]
Mpi = Annotated[
    bool,
    typer.Option("--mpi", help="Compute in the memory of all processes of mpiexec or srun."),
]
Grid = Annotated[
    str | None,
    typer.Option(metavar="PxQ", help="With --mpi: grid of processes. Default: squarest."),
]
BlockSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="With --mpi: rows of a block. Default: 192.")
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for tiles on each GPU or OpenCL device. Default: what is free there.",
    ),
]


def device_option(default: str) -> Any:
    """Return the option `--device` of a command that takes `default` without it."""
    return typer.Option(
        "--device",
        metavar="NAME",
        autocompletion=complete_device,
        help=f"host, opencl:0, cuda:0 …; may be given several times. Default: {default}.",
    )


Device = Annotated[list[str] | None, device_option("auto")]
HostOrDevice = Annotated[list[str] | None, device_option("host")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="Threads for BLAS and copies. Default: all cores.")
]
Tile = Annotated[
    str | None,
    typer.Option(metavar="MB,NB,KB", help="Use tiles of this shape. Default: the fastest."),
]
TransA = Annotated[bool, typer.Option("--trans-a", help="Multiply by the transpose of A.")]
TransB = Annotated[bool, typer.Option("--trans-b", help="Multiply by the transpose of B.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, with exact numbers.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan; read and write no matrix.")
]
NoClobber = Annotated[
    bool, typer.Option("--no-clobber", help="Refuse to replace a matrix that exists.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Store a result that is far larger than the operands.")
]
Checkpoint = Annotated[
    bool,
    typer.Option("--checkpoint", help="Keep a journal, so that the same command can resume."),
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Discard what an earlier run left, and begin again.")
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Write a Chrome/Perfetto trace (.json) here.")
]
GanttFile = Annotated[
    Path | None, typer.Option("--gantt", help="Write a Gantt picture (.png) here.")
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="Write the measured report (.json) here.")
]
Split = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SHARE",
        help="A device's share of C, host=0.2; may be given several times. Default: balanced.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|FILE|local:N",
        help="Compute on the workers of a Dask scheduler, or on N workers of this machine.",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="With --cluster or --ranks: bytes per second of the storage for all, like 20GB.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")]


def make_options(
    *,
    host_memory: str | None = None,
    device_memory: str | None = None,
    device: list[str] | None = None,
    threads: int | None = None,
    strategy: Strategy | None = None,
    tile: str | None = None,
    verify: Literal[True, "tiles"] | None = None,
    split: list[str] | None = None,
) -> Options:
    """Make the options of a run of what was given; the rest has the defaults of `Options`."""
    from hdgemm.options import Options, parse_tile

    given: dict[str, Any] = {
        "devices": tuple(device or ()) or None,
        "host_memory": host_memory,
        "device_memory": device_memory,
        "threads": threads,
        "strategy": strategy,
        "tile": None if tile is None else parse_tile(tile),
        "verify": verify,
        "split": _parse_split(split),
    }
    return Options(**{name: value for name, value in given.items() if value is not None})


def chosen_check(*, product: bool, tiles: bool) -> Literal[True, "tiles"] | None:
    """Turn the two flags of checks into the library's one setting."""
    if product and tiles:
        raise InputError("--verify checks the product and --verify-tiles each tile: choose one")
    return "tiles" if tiles else product or None


def refuse_storage_alone(storage: str | None) -> None:
    """Refuse `--storage` without `--cluster` or `--ranks`, which use it."""
    if storage is not None:
        raise InputError(
            "--storage describes the storage of a cluster: give --cluster or --ranks, too"
        )


def refuse_grid_alone(grid: str | None, nb: int | None) -> None:
    """Refuse `--grid` and `--nb` without `--mpi`, which alone uses them."""
    for option, value in (("--grid", grid), ("--nb", nb)):
        if value is not None:
            raise InputError(f"{option} describes the distribution over MPI: give --mpi, too")


def parse_scalar(text: str) -> complex:
    """Read alpha or beta: ``2``, ``-0.5``, ``1e-3``, or complex ``1+2j``."""
    try:
        value = complex(text.replace(" ", ""))
    except ValueError:
        raise InputError(f"cannot read {text!r} as a number; write 2, -0.5, 1e-3 or 1+2j") from None
    return value if value.imag else value.real


def check_beta(beta: complex, c: object) -> None:
    """Refuse `--beta` without the `--c` that it multiplies."""
    if c is None and beta != 0:
        raise InputError(f"--beta {beta:g} multiplies an old C: give --c C.npy, or leave it out")


def _parse_split(texts: Sequence[str] | None) -> dict[str, float] | None:
    """Read ``NAME=SHARE`` as often as it was given: ``host=0.2``."""
    shares: dict[str, float] = {}
    for text in texts or ():
        name, found, number = text.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            found = ""
        if not found or not name:
            raise InputError(f"cannot read {text!r} as a share; write NAME=SHARE like host=0.2")
        if name in shares:
            raise InputError(f"the share of {name} is given twice")
        shares[name] = share
    return shares or None
