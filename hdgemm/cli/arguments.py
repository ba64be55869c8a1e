"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from hdgemm.options import Options

DType = Literal["float64", "float32", "complex128", "complex64"]
Strategy = Literal["initial", "double-buffering", "data-reuse", "data-placement", "hybrid"]

HostMemory = Annotated[
    str | None,
    typer.Option(help="Memory the run may add to the process; default: a part of what is free."),
]
DeviceMemory = Annotated[
    str | None, typer.Option(help="Memory the run may hold on each device; default: what it has.")
]
Device = Annotated[
    list[str] | None,
    typer.Option(
        "--device", help="host, opencl:0, cuda:0 …; may be given several times. Default: auto."
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Threads for BLAS and copies; default: the cores there are.")
]
Tile = Annotated[
    str | None, typer.Option(metavar="MB,NB,KB", help="Force one tile shape; default: searched.")
]
TransA = Annotated[bool, typer.Option("--trans-a", help="A is given transposed.")]
TransB = Annotated[bool, typer.Option("--trans-b", help="B is given transposed.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Split = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SHARE",
        help="A device's share of C, host=0.2; may be given several times. Default: balanced.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")]


def make_options(
    *,
    host_memory: str | None = None,
    device_memory: str | None = None,
    device: list[str] | None = None,
    threads: int | None = None,
    strategy: Strategy = "data-placement",
    tile: str | None = None,
    verify: bool | Literal["tiles"] = False,
    split: list[str] | None = None,
) -> Options:
    """Gather what the command line gave in the library's settings object."""
    from hdgemm.cli.split import parse_split
    from hdgemm.options import Options

    return Options(
        devices=tuple(device) if device else "auto",
        host_memory=host_memory,
        device_memory=device_memory,
        threads=threads,
        strategy=strategy,
        tile=None if tile is None else _parse_tile(tile),
        verify=verify,
        split=parse_split(split),
    )


def chosen_check(*, product: bool, tiles: bool) -> bool | Literal["tiles"]:
    """Turn the two flags of checks into the library's one setting."""
    if product and tiles:
        raise InputError("--verify checks the product and --verify-tiles each tile: choose one")
    return "tiles" if tiles else product


def parse_scalar(text: str) -> complex:
    """Read alpha or beta: ``2``, ``-0.5``, ``1e-3``, or complex ``1+2j``."""
    try:
        value = complex(text.replace(" ", ""))
    except ValueError:
        raise InputError(f"cannot read {text!r} as a number; write 2, -0.5, 1e-3 or 1+2j") from None
    return value if value.imag else value.real


def _parse_tile(text: str) -> tuple[int, int, int]:
    parts = text.replace("x", ",").split(",")
    try:
        mb, nb, kb = (int(part) for part in parts)
    except ValueError:
        raise InputError(
            f"cannot read {text!r} as a tile; write three extents mb,nb,kb like 2048,4096,512"
        ) from None
    return mb, nb, kb
