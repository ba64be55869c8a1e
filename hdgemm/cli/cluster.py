"""`--cluster`: products on a cluster, and the map of C by worker on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hdgemm.cluster.connection import open_cluster
from hdgemm.cluster.report import ClusterProgress
from hdgemm.pictures.figure import COLOURS
from hdgemm.progress_view import PlainLines, ProgressView, describe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

    from hdgemm.cli.output import Outputs
    from hdgemm.pipeline.plan import Rect
    from hdgemm.progress import Progress


#: Rows and columns of the map on the terminal; a character is about twice as high as wide.
_MAP_ROWS: Final = 16
_MAP_COLS: Final = 48
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


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
    m, n and k and those of `hdgemm.cluster.plan_shape`.
    """
    from hdgemm.cli.output import print_result
    from hdgemm.cluster import plan, plan_shape

    if len(what) == 2:
        _check_operands(what, product)
    with open_cluster(where) as client:
        planned: Any = plan if len(what) == 2 else plan_shape
        found = planned(*what, **product, client=client, storage=storage)
    print_result(found, as_json=as_json)


def _check_operands(what: Sequence[Any], product: dict[str, Any]) -> None:
    """Refuse operands that are missing or do not fit together, before a worker is started."""
    from hdgemm.product.product import Product

    Product.of(*what, **{name: value for name, value in product.items() if name != "options"})


class BlockMap:
    """Map of C, of some `shape`, on a grid of characters: letter and colour name the worker."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._cells: dict[tuple[int, int], str] = {}
        self._elements: dict[str, int] = {}

    def add(self, worker: str, block: Rect) -> None:
        """Mark a finished block: the cells that begin in it, one at least."""
        self._elements[worker] = self._elements.get(worker, 0) + block.rows * block.cols
        rows = _cells(block.row, block.rows, self._shape[0], _MAP_ROWS)
        cols = _cells(block.col, block.cols, self._shape[1], _MAP_COLS)
        for row in rows:
            for col in cols:
                self._cells[row, col] = worker

    def text(self) -> Text:
        """Return the map and its legend."""
        order = {worker: number for number, worker in enumerate(self._elements)}
        text = Text()
        for row in range(_MAP_ROWS):
            text.append("  ")
            for col in range(_MAP_COLS):
                worker = self._cells.get((row, col))
                text.append(*_mark(None if worker is None else order[worker]))
            text.append("\n")
        total = self._shape[0] * self._shape[1]
        for worker, number in list(order.items())[: len(_LETTERS)]:
            letter, colour = _mark(number)
            share = 100 * self._elements[worker] / total
            text.append(f"  {letter} ", style=colour)
            text.append(f"{worker} {share:.1f} %")
        return text


def _cells(first: int, extent: int, whole: int, count: int) -> range:
    start = -(-first * count // whole)
    stop = -(-(first + extent) * count // whole)
    return range(start, stop) if start < stop else range(first * count // whole, start)


def _mark(number: int | None) -> tuple[str, str]:
    if number is None:
        return "·", "dim"
    return _LETTERS[number % len(_LETTERS)], COLOURS[number % len(COLOURS)]


class LiveMap(ProgressView):
    """Progress of a cluster on a terminal: one line, the map of C, the legend."""

    def __init__(self, label: str, console: Console) -> None:
        self._label = label
        self._map: BlockMap | None = None
        self._live = Live(console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update(Text(f"{self._label}: waiting for workers"))
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, progress: Progress, /) -> None:
        """Show one snapshot."""
        if not isinstance(progress, ClusterProgress):
            return
        if self._map is None:
            self._map = BlockMap(progress.shape)
        for worker, block in progress.blocks:
            self._map.add(worker, block)
        line = (
            f"{self._label} {progress.percent:5.1f} %  {describe(progress)} · "
            f"{len(progress.workers)} workers, {progress.steps} blocks"
        )
        self._live.update(Group(Text(line), self._map.text()))


def show_cluster_progress(label: str, console: Console | None = None) -> ProgressView:
    """Return the view that suits where standard error goes."""
    console = console or Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveMap(label, console)
    return PlainLines(label, console)
