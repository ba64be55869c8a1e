"""`hdgemm plan`: the plan of a product, without reading or writing any data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from hdgemm.cli import arguments as args
from hdgemm.cli.output import print_plans, print_result
from hdgemm.dtypes import StoredDTypeName
from hdgemm.errors import InputError
from hdgemm.routines.registry import planned
from hdgemm.units import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.call.plans import LinearPlan
    from hdgemm.mpi.plan import MpiPlan
    from hdgemm.pipeline.plan import Plan
    from hdgemm.routines.description import Routine

Pivoting: TypeAlias = Literal["partial", "tournament"]
Assumed: TypeAlias = Literal["gen", "pos"]

#: Words before the operands of a product that are as good as none.
_PRODUCT: Final = ("multiply", "matmul", "gemm")

What = Annotated[
    list[str],
    typer.Argument(
        metavar="M N K | A B | ROUTINE N | ROUTINE A",
        help="The extents m n k, or the files A and B; or one of "
        f"{', '.join(planned())}, and the order n, the extents m n, or the files; for systems "
        "the order n, n and the number of right-hand sides, or the files A and B; for lstsq, ridge "
        "and topk m n and the columns of B.",
    ),
]
StoredDType = Annotated[
    StoredDTypeName, typer.Option(help="Type of the stored elements, with extents.")
]
Result = Annotated[str | None, typer.Option(help="Where C would go, with A B.")]
OldC = Annotated[str | None, typer.Option(help="The old C, with A B.")]
Beta = Annotated[str, typer.Option(help="Factor of the old C; 0 never reads it.")]
VerifyTiles = Annotated[
    bool, typer.Option("--verify-tiles", help="Plan for checks of each tile of C.")
]
Ranks = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Plan solve, lu or cholesky over MPI on N ranks."),
]
Link = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="With --ranks: bytes/s of a rank's link. Default: 10GB."),
]
Gflops = Annotated[
    float | None,
    typer.Option(help="With --ranks: GFLOP/s of a rank. Default: measured on this machine."),
]
Refine = Annotated[
    bool, typer.Option("--refine", help="With --ranks and solve: refined from float32.")
]
PivotingName = Annotated[
    Pivoting, typer.Option(help="With --ranks, and solve or lu: how pivots are chosen.")
]
AssumedA = Annotated[
    Assumed, typer.Option(help="With --ranks and solve: pos plans Cholesky's method.")
]


def command(
    what: What,
    dtype: StoredDType = "float64",
    out: Result = None,
    c: OldC = None,
    beta: Beta = "0",
    *,
    trans_a: args.TransA = False,
    trans_b: args.TransB = False,
    host_memory: args.HostMemory = None,
    device_memory: args.DeviceMemory = None,
    device: args.Device = None,
    threads: args.Threads = None,
    strategy: args.StrategyName = None,
    tile: args.Tile = None,
    verify_tiles: VerifyTiles = False,
    checkpoint: args.Checkpoint = False,
    cluster: args.Cluster = None,
    storage: args.Storage = None,
    ranks: Ranks = None,
    link: Link = None,
    gflops: Gflops = None,
    refine: Refine = False,
    pivoting: PivotingName = "partial",
    assume_a: AssumedA = "gen",
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
    of_ranks: dict[str, Any] = {
        "link": link,
        "rate": None if gflops is None else gflops * 1e9,
        "refine": "float32" if refine else None,
        "pivoting": pivoting,
        "assume_a": assume_a,
    }
    if ranks is not None:
        of_ranks |= {"dtype": dtype, "host_memory": host_memory, "storage": storage}
        print_result(_over_mpi(what, {"ranks": ranks, **of_ranks}), as_json=as_json)
        return
    _refuse_without_ranks(of_ranks)
    if what[0] in _PRODUCT and not Path(what[0]).exists():
        what = what[1:]
    elif _is_routine(what[0]):
        given: dict[str, Any] = {
            "options": options,
            "out": out or "X.npy",
            "checkpoint": checkpoint,
        }
        if trans_a:
            given["trans"] = 1
        if trans_b:
            given["trans_b"] = True
        print_result(_of_routine(what, dtype, given), as_json=as_json)
        return
    else:
        _refuse_unknown_routine(what[0])
    factor = args.parse_scalar(beta)
    if len(what) == 2:
        args.check_beta(factor, c)
    product: dict[str, Any] = {
        "beta": factor,
        "c": c,
        "out": out or "C.npy",
        "trans_a": trans_a,
        "trans_b": trans_b,
        "options": options,
    }
    shape: dict[str, Any] = {"dtype": dtype, "options": options}
    if cluster is not None:
        _print_cluster_plan(cluster, what, product, shape, storage=storage, as_json=as_json)
        return
    args.refuse_storage_alone(storage)
    print_plans(_of_product(what, product, shape), as_json=as_json)


def _refuse_without_ranks(of_ranks: Mapping[str, Any]) -> None:
    """Refuse options that describe ranks of MPI, where there are none."""
    if any(value not in {None, "partial", "gen"} for value in of_ranks.values()):
        raise InputError(
            "--link, --gflops, --refine, --pivoting and --assume-a describe ranks of MPI: give "
            "--ranks, too"
        )


def _print_cluster_plan(
    cluster: str,
    what: list[str],
    product: dict[str, Any],
    shape: dict[str, Any],
    *,
    storage: str | None,
    as_json: bool,
) -> None:
    """Print the plan of a product on a cluster; see `_of_product` for the operands."""
    from hdgemm.cli.cluster import plan_on_cluster

    if len(what) not in {2, 3}:
        raise InputError(f"plan --cluster takes M N K or A B, got {len(what)} arguments")
    operands: Sequence[str | int] = _extents(what) if len(what) == 3 else what
    given = shape if len(what) == 3 else product
    plan_on_cluster(cluster, operands, given, storage=storage, as_json=as_json)


def _of_product(
    what: list[str], product: Mapping[str, Any], shape: Mapping[str, Any]
) -> list[Plan]:
    """Return the plans of a product: `product` are its other arguments where `what` are the files
    A and B, `shape` those where they are m, n and k.
    """
    from hdgemm.preflight import plan, plan_shape

    if len(what) == 3:
        return plan_shape(*_extents(what), **shape)
    if len(what) == 2 and not all(text.isdecimal() for text in what):
        return plan(*what, **product)
    raise InputError(
        f"the plan of a product takes three extents M N K or two files A B, got {' '.join(what)!r}"
        "; of a routine it takes ROUTINE N, such as lu 1000"
    )


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


def _refuse_unknown_routine(word: str) -> None:
    """Refuse a word that is neither a file nor a number: the name of a routine without a plan."""
    if not word.isidentifier() or Path(word).exists():
        return
    from hdgemm.linalg.absent_names import instead_of

    advice = instead_of("hdgemm.linalg", word)
    raise InputError(
        f"{word} is neither a file nor a routine with a plan{f': use {advice}' if advice else ''}; "
        f"there are plans for {', '.join(planned())}, and for products: M N K, or A B"
    )


def _of_routine(what: list[str], dtype: str, given: Mapping[str, Any]) -> LinearPlan:
    """Return the plan of a routine as its command runs it by default; `given` are other arguments
    of `plan`.
    """
    from hdgemm.linalg.preflight import plan

    name, *operands = what
    routine, numbers = planned().get(name), all(text.isdecimal() for text in operands)
    pair = routine is not None and len(routine.operands) > 1
    square = routine is None or routine.operands[0].square
    least, most, taken = _operand_words(routine, numbers=numbers)
    if not least <= len(operands) <= most:
        raise InputError(
            f"plan {name} takes {taken}, got {format_count(len(operands), 'argument')}"
        )
    given = {**(routine.defaults if routine is not None else {}), **given}
    matrices = [] if routine is None else routine.present(given, "matrix")
    if len(matrices) > 1:
        places = (given["out"] if each.first else f"{each.name}.npy" for each in matrices)
        given["out"] = tuple(places)
    a, b = operands[0], operands[1] if len(operands) > 1 else None
    if not numbers:
        return plan(name, a, columns=1 if b is None else b, **given)
    order, *more = _whole(operands)
    if pair and square:
        return plan(name, order, dtype=dtype, columns=more[0] if more else 1, **given)
    shape, columns = (order, more[0] if more else order), more[1:] or [1]
    return plan(name, shape, dtype=dtype, columns=columns[0], **given)


def _operand_words(routine: Routine | None, *, numbers: bool) -> tuple[int, int, str]:
    """Return the least and the largest number of words for a routine's operands, and the words."""
    if routine is None or len(routine.operands) == 1 or routine.operands[0].square:
        return 1, 2, "N, M N, or files"
    first, second = routine.operands
    most = 3 if numbers else 2
    if first.columns == second.rows:  # a product: B has no usual number of columns
        return most, most, "M N and the columns of op(B), or the files A and B"
    return 1, most, "N, M N, M N P, or files"


def _whole(texts: list[str]) -> list[int]:
    """Read whole numbers; Python's limit of their digits is an `InputError`."""
    try:
        extents = [int(text) for text in texts]
    except ValueError as error:
        raise InputError(f"cannot read an extent: {error}") from error
    return [_bounded(each) for each in extents]


def _bounded(extent: int) -> int:
    if extent > sys.maxsize:
        raise InputError(f"an extent must be less than 2**63, got {extent}", extent=extent)
    return extent


def _extents(texts: list[str]) -> tuple[int, int, int]:
    try:
        m, n, k = map(int, texts)
    except ValueError:
        raise InputError(
            f"cannot read {' '.join(texts)!r} as extents: write three whole numbers m n k, "
            "or two files"
        ) from None
    return m, n, k
