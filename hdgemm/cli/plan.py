"""`hdgemm plan`: the plan of a product, without reading or writing any data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from hdgemm.cli import arguments as args
from hdgemm.cli.output import print_plans, print_result
from hdgemm.dtypes import StoredDTypeName  # noqa: TC001  (Typer reads it)
from hdgemm.errors import InputError
from hdgemm.routines.registry import planned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.call.plans import LinearPlan
    from hdgemm.mpi.plan import MpiPlan

Pivoting: TypeAlias = Literal["partial", "tournament"]
Assumed: TypeAlias = Literal["gen", "pos"]


def command(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="M N K | A B | ROUTINE N | ROUTINE A",
            help="The extents m n k, or the files A and B; or one of "
            f"{', '.join(planned())}, and the order n, the extents m n, or the files; for systems "
            "the order n, n and the number of right-hand sides, or the files A and B.",
        ),
    ],
    dtype: Annotated[
        StoredDTypeName, typer.Option(help="Type of the stored elements, with extents.")
    ] = "float64",
    out: Annotated[str | None, typer.Option(help="Where C would go, with A B.")] = None,
    c: Annotated[str | None, typer.Option(help="The old C, with A B.")] = None,
    beta: Annotated[str, typer.Option(help="Factor of the old C; 0 never reads it.")] = "0",
    *,
    trans_a: args.TransA = False,
    trans_b: args.TransB = False,
    host_memory: args.HostMemory = None,
    device_memory: args.DeviceMemory = None,
    device: args.Device = None,
    threads: args.Threads = None,
    strategy: args.StrategyName = None,
    tile: args.Tile = None,
    verify_tiles: Annotated[
        bool, typer.Option("--verify-tiles", help="Plan for checks of each tile of C.")
    ] = False,
    checkpoint: args.Checkpoint = False,
    cluster: args.Cluster = None,
    storage: args.Storage = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Plan solve, lu or cholesky over MPI on N ranks."),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With --ranks: bytes/s of a rank's link. Default: 10GB."),
    ] = None,
    gflops: Annotated[
        float | None,
        typer.Option(help="With --ranks: GFLOP/s of a rank. Default: measured on this machine."),
    ] = None,
    refine: Annotated[
        bool, typer.Option("--refine", help="With --ranks and solve: refined from float32.")
    ] = False,
    pivoting: Annotated[
        Pivoting, typer.Option(help="With --ranks, and solve or lu: how pivots are chosen.")
    ] = "partial",
    assume_a: Annotated[
        Assumed, typer.Option(help="With --ranks and solve: pos plans Cholesky's method.")
    ] = "gen",
    as_json: args.Json = False,
) -> None:
    """Print the plan of a run: tiles, bytes, memory, expected seconds.

    The plan is the one that `hdgemm multiply` executes for the same files and options. With
    extents alone, the matrices are taken to lie in memory where they fit it, else in files.
    """
    options = args.make_options(
        host_memory=host_memory,
        device_memory=device_memory,
        device=device,
        threads=threads,
        strategy=strategy,
        tile=tile,
        verify="tiles" if verify_tiles else None,
    )

    from hdgemm.preflight import plan, plan_shape

    if ranks is not None:
        on_ranks = {
            "ranks": ranks,
            "dtype": dtype,
            "host_memory": host_memory,
            "link": link,
            "rate": None if gflops is None else gflops * 1e9,
            "storage": storage,
            "refine": "float32" if refine else None,
            "pivoting": pivoting,
            "assume_a": assume_a,
        }
        print_result(_over_mpi(what, on_ranks), as_json=as_json)
        return
    of_ranks = link is not None, gflops is not None, refine
    if any((*of_ranks, pivoting != "partial", assume_a != "gen")):
        raise InputError(
            "--link, --gflops, --refine, --pivoting and --assume-a describe ranks of MPI: give "
            "--ranks, too"
        )
    if _is_routine(what[0]):
        given: dict[str, Any] = {
            "options": options,
            "out": out or "X.npy",
            "checkpoint": checkpoint,
        }
        if trans_a:
            given["trans"] = 1
        print_result(_of_routine(what, dtype, given), as_json=as_json)
        return
    if cluster is not None:
        from hdgemm.cli.cluster import plan_on_cluster

        if len(what) == 3:
            shape = {"dtype": dtype, "options": options}
            plan_on_cluster(cluster, _extents(what), shape, storage=storage, as_json=as_json)
            return
        if len(what) != 2:
            raise InputError(f"plan --cluster takes M N K or A B, got {len(what)} arguments")
        product = {
            "beta": args.parse_scalar(beta),
            "c": c,
            "out": out or "C.npy",
            "trans_a": trans_a,
            "trans_b": trans_b,
            "options": options,
        }
        plan_on_cluster(cluster, what, product, storage=storage, as_json=as_json)
        return
    args.refuse_storage_alone(storage)
    if len(what) == 3:
        plans = plan_shape(*_extents(what), dtype=dtype, options=options)
    elif len(what) == 2 and not all(text.isdecimal() for text in what):
        plans = plan(
            what[0],
            what[1],
            beta=args.parse_scalar(beta),
            c=c,
            out=out or "C.npy",
            trans_a=trans_a,
            trans_b=trans_b,
            options=options,
        )
    else:
        raise InputError(f"plan takes three extents M N K or two files A B, got {' '.join(what)!r}")
    print_plans(plans, as_json=as_json)


def _over_mpi(what: list[str], given: Mapping[str, Any]) -> MpiPlan:
    """Return the plan of a routine on ranks."""
    from hdgemm.mpi.plan import plan

    routine, *numbers = what
    if not 1 <= len(numbers) <= 2:
        raise InputError(
            f"plan {routine} --ranks takes N, or N and the right-hand sides, got "
            f"{len(numbers)} arguments"
        )
    return plan(routine, *_whole(numbers), **given)


def _is_routine(word: str) -> bool:
    """Say whether a word names a function, planned or not."""
    if not word.isidentifier():
        return False
    import hdgemm

    return word in planned() or word in {*hdgemm.linalg.__all__, *hdgemm.__all__}


def _of_routine(what: list[str], dtype: str, given: Mapping[str, Any]) -> LinearPlan:
    """Return the plan of a routine as its command runs it by default; `given` are other arguments
    of `plan`.
    """
    from hdgemm.linalg.preflight import plan

    name, *operands = what
    if not 1 <= len(operands) <= 2:
        raise InputError(f"plan {name} takes N, M N, or files, got {len(operands)} arguments")
    routine = planned().get(name)
    given = {**(routine.defaults if routine is not None else {}), **given}
    matrices = [] if routine is None else routine.present(given, "matrix")
    if len(matrices) > 1:
        places = (given["out"] if each.first else f"{each.name}.npy" for each in matrices)
        given["out"] = tuple(places)
    a, b = operands[0], operands[1] if len(operands) > 1 else None
    if not all(text.isdecimal() for text in operands):
        return plan(name, a, columns=1 if b is None else b, **given)
    order, *columns = _whole(operands)
    if routine is not None and len(routine.operands) > 1 and routine.operands[0].square:
        return plan(name, order, dtype=dtype, columns=columns[0] if columns else 1, **given)
    return plan(name, (order, columns[0] if columns else order), dtype=dtype, **given)


def _whole(texts: list[str]) -> list[int]:
    """Read whole numbers; Python's limit of their digits is an `InputError`."""
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise InputError(f"cannot read an extent: {error}") from error


def _extents(texts: list[str]) -> tuple[int, int, int]:
    try:
        m, n, k = map(int, texts)
    except ValueError:
        raise InputError(
            f"cannot read {' '.join(texts)!r} as extents: write three whole numbers m n k, "
            "or two files"
        ) from None
    return m, n, k
