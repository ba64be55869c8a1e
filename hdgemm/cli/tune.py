"""`hdgemm tune`: find the fastest OpenCL kernel for a device, and remember it."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from hdgemm.pipeline.devices.opencl.tuner import Tuning

_BAR = "▁▂▃▄▅▆▇█"


def command(
    *,
    device: Annotated[str, typer.Option(help="opencl:0, or a part like opencl:0/2:0")] = "opencl:0",
    dtype: Annotated[
        str, typer.Option(help="float32, float64, complex64 or complex128")
    ] = "float64",
    budget: Annotated[str, typer.Option(help="how long to search: 90, 60s, 5m")] = "60s",
    again: Annotated[
        bool, typer.Option("--again", help="forget earlier trials instead of going on from them")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="write everything as JSON here")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="write the distribution of speeds as a PNG here")
    ] = None,
) -> None:
    """Search for the fastest OpenCL kernel on a device; Ctrl-C keeps what is known.

    Candidates are pruned by the device's limits, the rest compiled, checked against BLAS and
    timed, best first, until the budget is spent. The winner is used from then on.
    """
    from rich.console import Console

    from hdgemm.pipeline.devices.opencl.peers import peer_speeds
    from hdgemm.pipeline.devices.opencl.tuning_report import draw, to_json, write_report

    seconds, kind = parse_seconds(budget), _parse_dtype(dtype)
    console = Console()
    tuning = _search(console, device, kind, seconds, again=again)
    _show(console, tuning)
    peers: dict[str, float] = {}
    if not tuning.interrupted and tuning.winner is not None:
        # The winner is known and kept: nobody has to wait for those it is compared with.
        with contextlib.suppress(KeyboardInterrupt):
            peers = peer_speeds(device, kind, tuning.winner.n)
    _show_peers(console, tuning, peers)
    if report is not None:
        write_report(report, to_json(tuning, peers))
    if picture is not None:
        draw(picture, tuning)
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


def _parse_dtype(text: str) -> Any:
    import numpy as np

    from hdgemm.errors import InputError
    from hdgemm.pipeline.devices.opencl.shape import DTYPES

    if text not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {text!r}")
    return np.dtype(text)


def _search(
    console: "Console", device: str, dtype: Any, seconds: float, *, again: bool
) -> "Tuning":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from hdgemm.pipeline.devices.opencl.find import locate
    from hdgemm.pipeline.devices.opencl.store import Store
    from hdgemm.pipeline.devices.opencl.tuner import Progress as Spent
    from hdgemm.pipeline.devices.opencl.tuner import tune

    store = Store()
    if unwritable := store.unwritable():
        console.print(
            f"nothing will be kept: {unwritable}; HDGEMM_CACHE names another folder", style="yellow"
        )
    if again:
        store.forget(locate(device)[0], dtype)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("pruning", total=1.0)

        def show(spent: Spent) -> None:
            text = f"{spent.round}: {spent.tried} tried, best {spent.best_gflops:.1f} GFLOP/s"
            bar.update(task, description=text, completed=spent.spent)

        return tune(device, dtype, seconds, store=store, progress=show)


def _show(console: "Console", tuning: "Tuning") -> None:
    from hdgemm.pipeline.devices.opencl.shape_classes import extents
    from hdgemm.pipeline.devices.opencl.tuning_report import histogram

    facts = tuning.facts
    console.print(f"{tuning.device}: {facts.device}, {facts.platform} {facts.driver}")
    funnel = tuning.funnel()
    console.print(f"{funnel['candidates']:>9,} candidates")
    for rule, count in funnel["pruned"].items():
        console.print(f"{-count:>9,} {rule.replace('_', ' ')}")
    console.print(f"{funnel['kept']:>9,} left; {funnel['not_tried']:,} not tried in the time given")
    for outcome in ("failed", "crashed", "slow", "wrong", "timed"):
        console.print(f"{funnel[outcome]:>9,} {outcome}")
    counts, low, high = histogram(tuning.speeds())
    if counts:
        most = max(counts)
        bars = "".join(_BAR[round(7 * count / most)] if count else " " for count in counts)
        console.print(f"speeds {low:.1f} |{bars}| {high:.1f} GFLOP/s")
    for name, result in (("winner", tuning.winner), ("shipped default", tuning.default)):
        if result is not None:
            console.print(f"{name}: {result.gflops:.1f} GFLOP/s at n = {result.n}")
    if tuning.winner is not None:
        shape = ", ".join(f"{k}={v}" for k, v in tuning.winner.shape.to_json().items())
        console.print(f"  {shape}", highlight=False)
    for name, of in tuning.classes.items():
        text = f"{of.best.gflops:.1f} GFLOP/s" if of.kept else "the same kernel"
        sides = " x ".join(map(str, extents(name, of.best.n)))
        console.print(f"{name} products ({sides}): {text}, square's has {of.square.gflops:.1f}")
    if tuning.winner is not None and not tuning.unkept:
        console.print("kept, and used from now on")


def _show_peers(console: "Console", tuning: "Tuning", peers: dict[str, float]) -> None:
    names = {"numpy": "NumPy's BLAS", "clblast": "CLBlast, untuned"}
    for name, speed in peers.items():
        times = tuning.winner.gflops / speed if tuning.winner is not None else 0.0
        console.print(f"{names[name]}: {speed:.1f} GFLOP/s; the winner has {times:.2f} times that")
