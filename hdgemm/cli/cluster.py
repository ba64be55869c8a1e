"""`--cluster`: products on a cluster, and the map of C by worker on the terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hdgemm.cli.output import Outputs, print_result
from hdgemm.cluster.connection import open_cluster
from hdgemm.pictures.figure import COLOURS
from hdgemm.progress_view import PlainLines, ProgressView, describe
from hdgemm.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Self

    from hdgemm.options import Options
    from hdgemm.progress import Progress, TileGrid


def multiply_on_cluster(
    where: str,
    a: Path,
    b: Path,
    product: dict[str, Any],
    outputs: Outputs,
    *,
    storage: str | None,
    restart: bool,
) -> None:
    """Multiply on the workers that `where` names, and show progress and report."""
    from hdgemm.cluster import multiply

    outputs.check()
    _check_operands((a, b), product)
    with open_cluster(where) as client:
        if not outputs.quiet:
            typer.echo(f"Dask's dashboard: {client.dashboard_link}", err=True)
        outputs.show(
            product["out"].name,
            lambda progress: multiply(
                a, b, **product, client=client, storage=storage, progress=progress, restart=restart
            ),
            show_cluster_progress,
        )


@contextmanager
def rows_on_cluster(where: str, options: Options) -> Iterator[None]:
    """Let the workers that `where` names execute the passes over rows of calls in a context."""
    from hdgemm.cluster import row_passes

    with open_cluster(where) as client, row_passes(client, options=options):
        yield


def plan_on_cluster(
    where: str,
    what: Sequence[str | Path | int],
    product: dict[str, Any],
    *,
    storage: str | None,
    as_json: bool,
) -> None:
    """Print the plan of a product on the workers that `where` names.

    `what` and `product` are the files A and B and the other arguments of `hdgemm.cluster.plan`, or
    m, n and k with `options`.
    """
    from hdgemm.cluster.preflight import plan, plan_shape

    if len(what) == 2:
        _check_operands(what, product)
    with open_cluster(where) as client:
        planned: Any = plan if len(what) == 2 else plan_shape
        found = planned(*what, **product, client=client, storage=storage)
    print_result(found, as_json=as_json)


def _check_operands(what: Sequence[Any], product: dict[str, Any]) -> None:
    """Refuse operands that are missing or do not fit together, before a worker is started."""
    from hdgemm.product.product import Product

    arguments = {name: value for name, value in product.items() if name != "options"}
    Product.of(*what, **arguments, whole=True)


def _map_of(tiles: TileGrid) -> Text:
    """Return the map of C, in which letter and colour name the worker, and its legend."""
    text, cells = Text(), "".join(tiles.rows)
    for row in tiles.rows:
        text.append("  ")
        for cell in row:
            text.append(*(("·", "dim") if cell == "." else _mark(ord(cell) - ord("a"))))
        text.append("\n")
    for number, worker in enumerate(tiles.devices[:26]):
        letter, colour = _mark(number)
        text.append(f"  {letter} ", style=colour)
        text.append(f"{worker} {100 * cells.count(letter.lower()) / len(cells):.1f} %")
    return text


def _mark(number: int) -> tuple[str, str]:
    return chr(ord("A") + number), COLOURS[number % len(COLOURS)]


class LiveMap(ProgressView):
    """Progress of a cluster on a terminal: one line, the map of C, the legend."""

    def __init__(self, label: str, console: Console) -> None:
        self._label = label
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update(Text(f"{self._label}: waiting for workers"))
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, progress: Progress, /) -> None:
        """Show one snapshot."""
        tiles = progress.tiles
        if tiles is None:
            return
        line = (
            f"{self._label} {progress.percent:5.1f} %  {describe(progress)} · "
            f"{format_count(len(tiles.devices), 'worker')}, {format_count(progress.steps, 'block')}"
        )
        self._live.update(Group(Text(line), _map_of(tiles)))


def show_cluster_progress(label: str, console: Console | None = None) -> ProgressView:
    """Return the view that suits where standard error goes."""
    console = console or Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveMap(label, console)
    return PlainLines(label, console)
