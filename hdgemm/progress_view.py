"""Views of a run's progress: a live bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar

from hdgemm.machine.limits import memory_limit, thread_limit
from hdgemm.units import format_duration, format_speed

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from hdgemm.progress import Progress

_P = ParamSpec("_P")
_R = TypeVar("_R")
#: Percent between two lines where there is no terminal.
_EVERY: Final = 10.0


def shows_progress(call: Callable[_P, _R]) -> Callable[_P, _R]:
    """Give a public call ``progress=True``: a view of its progress while it runs.

    Refusals of the system, of memory or a thread, become errors of the library. A StopIteration of
    the caller's `progress` or `observer` is raised as such, where a generator has wrapped it.
    """

    @wraps(call)
    def with_view(*args: _P.args, **keywords: _P.kwargs) -> _R:
        try:
            with thread_limit(), memory_limit():
                if keywords.get("progress") is not True:
                    return call(*args, **keywords)
                with show_progress(call.__name__) as view:
                    keywords["progress"] = view
                    return call(*args, **keywords)
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration):
                raise error.__cause__ from None
            raise

    return with_view


def show_progress(label: str, *, console: Console | None = None) -> ProgressView:
    """Return the view that suits a notebook, a terminal, or another standard error."""
    if console is None and (display := _notebook_display()):
        return NotebookBar(label, display)
    if console is None:
        from rich.console import Console

        console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveBar(label, console)
    return PlainLines(label, console)


def describe(progress: Progress) -> str:
    """Return speed, time to go and bottleneck in a few words."""
    if progress.phase == "calibrating":
        return "measuring the rates of this machine, once"
    if progress.phase == "verifying":
        return "checking the product"
    words = [format_speed(progress.gflops)]
    if progress.percent < 100.0:
        words.append(f"ETA {format_duration(progress.eta)}")
    else:
        words.append(f"in {format_duration(progress.elapsed)}")
    if progress.limit is not None:
        words.append(f"bottleneck {progress.limit}")
    return " · ".join(words)


class ProgressView:
    """A context in which calls show snapshots of a run's progress."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""

    def __call__(self, progress: Progress, /) -> None:
        """Show one snapshot."""
        raise NotImplementedError


class LiveBar(ProgressView):
    """A bar that is redrawn in place."""

    def __init__(self, label: str, console: Console) -> None:
        from rich.progress import BarColumn, Progress as RichProgress, TextColumn

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
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

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress, /) -> None:
        """Redraw the bar."""
        self._bar.update(self._task, completed=progress.percent, state=describe(progress))


class PlainLines(ProgressView):
    """One line every ten percent, for logs and pipes."""

    def __init__(self, label: str, console: Console) -> None:
        self._label = label
        self._console = console
        self._next = 0.0

    def __call__(self, progress: Progress, /) -> None:
        """Print a line where the next ten percent are done."""
        if progress.percent < self._next or progress.phase in ("calibrating", "verifying"):
            return
        self._next = _EVERY * (progress.percent // _EVERY + 1)
        self._console.print(
            f"{self._label} {progress.percent:5.1f} %  {describe(progress)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


class NotebookBar(ProgressView):
    """A bar in the output of a notebook's cell."""

    def __init__(self, label: str, display: Callable[..., Any]) -> None:
        self._label = label
        self._html = "planning"
        self._handle = display(self, display_id=True)

    def __call__(self, progress: Progress, /) -> None:
        """Redraw the bar."""
        bar = f'<progress max="100" value="{progress.percent:.1f}"></progress>'
        self._html = f"{bar} {progress.percent:.1f} % · {describe(progress)}"
        self._handle.update(self)

    def _repr_html_(self) -> str:
        return f"<div>{escape(self._label)} {self._html}</div>"


def _notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` inside a notebook's kernel, None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from importlib import import_module

    display: Callable[..., Any] = import_module("IPython.display").display
    return display
