"""`hdgemm tune`: search for the fastest OpenCL kernel of a device, and keep it."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdgemm.cli.arguments import Json, complete_device
from hdgemm.cli.output import after_the_result, check_file, print_json
from hdgemm.dtypes import DTypeName

if TYPE_CHECKING:
    from rich.console import Console

    from hdgemm.pipeline.devices.opencl.tuner import Tuning

_BAR = "▁▂▃▄▅▆▇█"


def command(
    *,
    device: Annotated[
        str,
        typer.Option(autocompletion=complete_device, help="opencl:0, or a part like opencl:0/2:0."),
    ] = "opencl:0",
    dtype: Annotated[DTypeName, typer.Option(help="Type of the elements.")] = "float64",
    budget: Annotated[str, typer.Option(help="How long to search: 90, 60s, 5m.")] = "60s",
    again: Annotated[
        bool, typer.Option("--again", help="Forget earlier trials instead of continuing them.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write all results (.json) here.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Write the distribution of speeds (.png) here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search for the fastest OpenCL kernel of a device.

    Candidates are pruned by the device's limits; the rest are compiled, compared with BLAS and
    timed, best first, until the budget is spent. Later products use the fastest. Ctrl-C keeps
    the best so far.
    """
    import numpy as np
    from rich.console import Console

    from hdgemm.pipeline.devices.opencl.tuner import blas_gflops
    from hdgemm.pipeline.devices.opencl.tuning_report import draw, to_json, write_report

    check_file(report, "--report", ".json")
    check_file(picture, "--picture", ".png")
    seconds, kind = parse_seconds(budget), np.dtype(dtype)
    console = Console(quiet=as_json)
    tuning = _search(Console(stderr=True), device, kind, seconds, again=again)
    _show_funnel(console, tuning)
    _show_winner(console, tuning)
    peers: dict[str, float] = {}
    if not tuning.interrupted and tuning.winner is not None:
        with contextlib.suppress(KeyboardInterrupt):
            peers["numpy"] = blas_gflops(kind, tuning.winner.n)
            ratio = tuning.winner.gflops / peers["numpy"]
            console.print(
                f"NumPy's BLAS: {peers['numpy']:.1f} GFLOP/s; the winner is {ratio:.2f} of that"
            )
    with after_the_result():
        if report is not None:
            write_report(report, to_json(tuning, peers))
        if picture is not None:
            draw(picture, tuning)
    if as_json:
        print_json(to_json(tuning, peers))
    if tuning.interrupted:
        raise typer.Exit(130)


def parse_seconds(text: str) -> float:
    """Read ``90``, ``"60s"`` or ``"5m"`` as seconds."""
    import re

    from hdgemm.errors import InputError

    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|m|h)?\s*", text)
    if match is None or float(match[1]) <= 0:
        raise InputError(f"cannot read {text!r} as a time; write it like 60s or 5m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _search(
    console: "Console", device: str, dtype: Any, seconds: float, *, again: bool
) -> "Tuning":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from hdgemm.pipeline.devices.opencl.names import locate
    from hdgemm.pipeline.devices.opencl.tuner import TuningProgress, tune
    from hdgemm.pipeline.devices.opencl.tuning_cache import TuningCache

    facts, cache = locate(device).facts, TuningCache()
    if reason := cache.unwritable():
        console.print(
            f"nothing will be kept: {reason}; HDGEMM_CACHE names another folder", style="yellow"
        )
    if again:
        cache.forget_trials(facts, dtype)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("pruning", total=1.0)

        def show(state: TuningProgress) -> None:
            text = f"{state.round}: {state.tried} tried, best {state.best_gflops:.1f} GFLOP/s"
            bar.update(task, description=text, completed=state.spent)

        return tune(device, dtype, seconds, cache=cache, progress=show)


def _show_funnel(console: "Console", tuning: "Tuning") -> None:
    from hdgemm.pipeline.devices.opencl.tuning_report import histogram

    facts = tuning.facts
    console.print(f"{tuning.device}: {facts.device}, {facts.platform} {facts.driver}")
    funnel = tuning.funnel()
    console.print(f"{funnel['candidates']:>9,} candidates")
    for rule, count in funnel["pruned"].items():
        console.print(f"{-count:>9,} {rule.replace('_', ' ')}")
    console.print(f"{funnel['kept']:>9,} left; {funnel['not_tried']:,} not tried within the budget")
    for outcome in ("failed", "crashed", "slow", "wrong", "timed"):
        console.print(f"{funnel[outcome]:>9,} {outcome}")
    counts, low, high = histogram(tuning.speeds())
    if counts:
        most = max(counts)
        bars = "".join(_BAR[round(7 * count / most)] if count else " " for count in counts)
        console.print(f"speeds {low:.1f} |{bars}| {high:.1f} GFLOP/s")


def _show_winner(console: "Console", tuning: "Tuning") -> None:
    from hdgemm.pipeline.devices.opencl.kernel_shapes import class_extents

    for name, trial in (("winner", tuning.winner), ("shipped default", tuning.default)):
        if trial is not None:
            console.print(f"{name}: {trial.gflops:.1f} GFLOP/s at n = {trial.n}")
    if tuning.winner is None:
        return
    shape = ", ".join(f"{k}={v}" for k, v in tuning.winner.shape.to_json().items())
    console.print(f"  {shape}", highlight=False)
    for name, of in tuning.classes.items():
        text = f"{of.best.gflops:.1f} GFLOP/s" if of.kept else "the same kernel"
        sides = " x ".join(map(str, class_extents(name, of.best.n)))
        console.print(f"{name} products ({sides}): {text}, square's has {of.square.gflops:.1f}")
    console.print(f"not kept: {tuning.unkept}" if tuning.unkept else "kept for later products")
