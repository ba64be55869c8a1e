"""A run's progress on standard error: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console

if TYPE_CHECKING:
    from types import TracebackType

    from hdgemm.progress import Progress

#: Percent between two lines where there is no terminal.
_EVERY = 10.0


class ProgressView(Protocol):
    """A context whose calls show progress."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""

    def __call__(self, progress: Progress, /) -> None:
        """Show one snapshot."""


def show_progress(label: str, *, console: Console | None = None) -> ProgressView:
    """Return the view that suits where standard error goes."""
    console = console or Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveBar(label, console)
    return PlainLines(label, console)


def describe(progress: Progress) -> str:
    """Return speed, time to go and bottleneck in a few words."""
    if progress.phase == "calibrating":
        return "measuring the rates of this machine, once"
    if progress.phase == "verifying":
        return "checking the product"
    words = [f"{progress.gflops:.1f} GFLOP/s"]
    if progress.percent < 100.0:
        words.append(f"ETA {_clock(progress.eta)}")
    else:
        words.append(f"in {_clock(progress.elapsed)}")
    if progress.limit is not None:
        words.append(f"bottleneck {progress.limit}")
    return " · ".join(words)


class LiveBar:
    """A bar that is redrawn in place."""

    def __init__(self, label: str, console: Console) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:5.1f} %"),
            TextColumn("{task.fields[state]}"),
            console=console,
            # Few redraws: each takes a core from the kernel for a moment.
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(label, total=100.0, state="planning")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress, /) -> None:
        """Redraw the bar."""
        self._bar.update(self._task, completed=progress.percent, state=describe(progress))


class PlainLines:
    """One line every ten percent, for logs and pipes."""

    def __init__(self, label: str, console: Console) -> None:
        self._label = label
        self._console = console
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def __call__(self, progress: Progress, /) -> None:
        """Print a line where the next ten percent are done."""
        if progress.percent < self._next or progress.phase != "multiplying":
            return
        self._next = _EVERY * (progress.percent // _EVERY + 1)
        self._console.print(
            f"{self._label} {progress.percent:5.1f} %  {describe(progress)}",
            highlight=False,
            soft_wrap=True,
        )


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
