"""`hdgemm multiply`: C := alpha·op(A)·op(B) + beta·C, file to file."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hdgemm.cli import arguments as args
from hdgemm.cli.output import Outputs, confirm_size, print_plans, refuse_existing
from hdgemm.errors import InputError


def command(
    a: Annotated[Path, typer.Argument(metavar="A", help="A: a file, or FILE::NAME.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="B: a file, or FILE::NAME.")],
    out: Annotated[Path, typer.Option(help="Where C goes; may be the file given with --c.")],
    alpha: Annotated[str, typer.Option(help="Factor of the product.")] = "1",
    beta: Annotated[str, typer.Option(help="Factor of the old C; 0 never reads it.")] = "0",
    c: Annotated[Path | None, typer.Option(help="The old C: a file, or FILE::NAME.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of the arithmetic and of C. Default: int64 for integers, else theirs."
        ),
    ] = None,
    *,
    trans_a: args.TransA = False,
    trans_b: args.TransB = False,
    host_memory: args.HostMemory = None,
    device_memory: args.DeviceMemory = None,
    device: args.Device = None,
    split: args.Split = None,
    threads: args.Threads = None,
    strategy: args.StrategyName = None,
    tile: args.Tile = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check C by Freivalds' method.")] = False,
    verify_tiles: Annotated[
        bool, typer.Option("--verify-tiles", help="Check each tile of C before it is stored.")
    ] = False,
    cluster: args.Cluster = None,
    storage: args.Storage = None,
    checkpoint: args.Checkpoint = False,
    restart: args.Restart = False,
    no_clobber: args.NoClobber = False,
    yes: args.Yes = False,
    dry_run: args.DryRun = False,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Run the plan that --dry-run --json printed.")
    ] = None,
    trace: args.TraceFile = None,
    gantt: args.GanttFile = None,
    tilemap: Annotated[
        Path | None, typer.Option(help="Write a map (.png) of the devices' tiles of C here.")
    ] = None,
    report: args.ReportFile = None,
    as_json: args.Json = False,
    quiet: args.Quiet = False,
) -> None:
    """Compute C := alpha·op(A)·op(B) + beta·C for matrices of any size."""
    from hdgemm.blas.products import multiply
    from hdgemm.matrices.location import parse_location
    from hdgemm.preflight import plan

    product: dict[str, Any] = {
        "alpha": args.parse_scalar(alpha),
        "beta": args.parse_scalar(beta),
        "c": c,
        "out": out,
        "trans_a": trans_a,
        "trans_b": trans_b,
        "dtype": dtype,
        "options": args.make_options(
            host_memory=host_memory,
            device_memory=device_memory,
            device=device,
            threads=threads,
            strategy=strategy,
            tile=tile,
            split=split,
            verify=args.chosen_check(product=verify, tiles=verify_tiles),
        ),
    }
    args.check_beta(product["beta"], c)
    if no_clobber:
        refuse_existing(out)
    if not (yes or dry_run):
        _ask_about_size(a, b, product)
    outputs = Outputs(
        trace=trace, gantt=gantt, tilemap=tilemap, report=report, quiet=quiet, as_json=as_json
    )
    if cluster is not None:
        from hdgemm.cli.cluster import multiply_on_cluster, plan_on_cluster

        if dry_run:
            plan_on_cluster(cluster, (a, b), product, storage=storage, as_json=as_json)
        else:
            multiply_on_cluster(cluster, a, b, product, outputs, storage=storage, restart=restart)
        return
    args.refuse_storage_alone(storage)
    if dry_run:
        plans = plan(a, b, **product)
        place = parse_location(out)
        place.kind.check_new(place, durable=checkpoint)
        print_plans(plans, as_json=as_json)
        return
    if plan_file is not None:
        fixed = {
            "--host-memory": host_memory,
            "--device-memory": device_memory,
            "--device": device,
            "--split": split,
            "--threads": threads,
            "--strategy": strategy,
            "--tile": tile,
            "--verify": verify,
            "--verify-tiles": verify_tiles,
            "--checkpoint": checkpoint,
            "--restart": restart,
        }
        outputs.show(out.name, _planned_run(plan_file, a, b, product, fixed))
        return
    outputs.show(
        out.name,
        lambda progress: multiply(
            a, b, **product, progress=progress, checkpoint=checkpoint, restart=restart
        ),
    )


def _ask_about_size(a: Path, b: Path, product: Mapping[str, Any]) -> None:
    """Ask whether a C that dwarfs the operands is meant: A·B^T of tall ones instead of A^T·B."""
    from hdgemm.matrices.operands import open_operand
    from hdgemm.product.product import check_product

    left = open_operand(a, what="a", trans=product["trans_a"])
    right = open_operand(b, what="b", trans=product["trans_b"])
    old = None if product["c"] is None else open_operand(product["c"], what="c")
    checked = check_product(
        product["alpha"], left, right, product["beta"], old, wanted=product["dtype"], whole=True
    )
    operands = [each for each in (left, right, old) if each is not None]
    confirm_size(
        math.prod(checked.shape) * checked.c_dtype.itemsize,
        sum(math.prod(each.shape) * each.matrix.dtype.itemsize for each in operands),
        "multiply",
    )


def _planned_run(
    file: Path, a: Path, b: Path, product: Mapping[str, Any], fixed: Mapping[str, object]
) -> Callable[[Any], Any]:
    """Return the run of a plan in a file; `fixed` are options that a plan leaves no choice of."""
    from hdgemm.matrices.files import read_regular
    from hdgemm.pipeline.plan import from_json
    from hdgemm.preflight import execute

    if given := [name for name, value in fixed.items() if value]:
        raise InputError(f"--plan decides what {', '.join(given)} would choose: leave one of them")
    beta, c, out = (product[name] for name in ("beta", "c", "out"))
    if beta != 0 and c != out:
        raise InputError(f"--plan updates C in place: give --c {out}, or beta 0; got --c {c}")
    planned = from_json(read_regular(file).decode("utf-8", "replace"))
    kept = {name: product[name] for name in ("alpha", "beta", "trans_a", "trans_b", "dtype")}
    return lambda progress: execute(planned, a, b, out, **kept, progress=progress)
