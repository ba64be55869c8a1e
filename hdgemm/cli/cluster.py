"""`--cluster`: the scheduler that an option names, and the map of C by worker on the terminal."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hdgemm.cluster.report import ClusterProgress
from hdgemm.errors import InputError
from hdgemm.progress_view import PlainLines, ProgressView, describe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from hdgemm.cli.output import Outputs
    from hdgemm.pipeline.plan import Rect
    from hdgemm.progress import Progress


#: Rows and columns of the map on the terminal; a character is about twice as high as wide.
_MAP_ROWS: Final = 16
_MAP_COLS: Final = 48
#: Okabe and Ito's colours, as in the pictures; more workers than colours begin again.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@contextmanager
def open_cluster(where: str) -> Iterator[Any]:
    """Yield a Dask client.

    Parameters
    ----------
    where
        The address of a scheduler, ``tcp://host:8786``; the file that a scheduler has written; or
        ``local:4``, which starts four workers on this machine and stops them at the end.

    Raises
    ------
    InputError
        When it is none of these, or no scheduler answers.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError(
            "--cluster needs distributed, which is not installed: pip install 'hdgemm[dask]'"
        ) from error
    with ExitStack() as stack:
        try:
            client = _client(where, stack, Client, LocalCluster)
        except (OSError, ValueError, TimeoutError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"--cluster {where}: no scheduler answers ({error})") from error
        yield client


def _client(where: str, stack: ExitStack, client: Any, local_cluster: Any) -> Any:
    if match := re.fullmatch(r"local:(\d+)", where):
        from hdgemm.machine.limits import cores

        count = int(match[1])
        if not 1 <= count <= 1024:
            raise InputError(f"--cluster {where}: give 1 to 1024 workers")
        cluster = stack.enter_context(
            local_cluster(
                n_workers=count, threads_per_worker=max(1, cores() // count), processes=True,
                dashboard_address="127.0.0.1:0",
            )
        )  # fmt: skip
        return stack.enter_context(client(cluster))
    if re.match(r"\w+://", where):
        return stack.enter_context(client(where, timeout="10s"))
    if not Path(where).is_file():
        raise InputError(
            f"--cluster {where}: give a scheduler's address (tcp://host:8786), the file that it "
            "has written, or local:4"
        )
    return stack.enter_context(client(scheduler_file=where, timeout="10s"))


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
    a: str | Path,
    b: str | Path,
    product: dict[str, Any],
    *,
    storage: str | None,
    as_json: bool,
) -> None:
    """Print the plan of a product on the workers that `where` names."""
    from hdgemm.cluster import plan

    with open_cluster(where) as client:
        found = plan(a, b, **product, client=client, storage=storage)
    typer.echo(found.to_json() if as_json else str(found))


class BlockMap:
    """Map of C on a grid of characters: each in the letter and colour of the worker that stored it.

    Parameters
    ----------
    shape
        Rows and columns of C.
    """

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
    return _LETTERS[number % len(_LETTERS)], _COLOURS[number % len(_COLOURS)]


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
