"""A timeline as a Gantt chart: a row per stage, a group of rows per device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import STAGES

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hdgemm.pipeline.plan import Stage
    from hdgemm.pipeline.timeline import Event, Timeline

#: A shade for even and for odd work units, so that neighbours can be told apart. The hues differ
#: in lightness too, for eyes and printers that do not see them.
_SHADES: Final[dict[str, tuple[str, str]]] = {
    "load1": ("#0072b2", "#4aa3d8"),
    "load2": ("#56b4e9", "#9ad4f5"),
    "mult1": ("#d55e00", "#f08c3c"),
    "store1": ("#7fbf7b", "#b2dfae"),
    "store2": ("#009e73", "#4cc9a4"),
}
_INCHES_WIDE: Final = 11.0
_DPI: Final = 110
#: Half a pixel, as part of the run's length: bars closer than it are one bar, and none is thinner
#: than three of them.
_RESOLUTION: Final = 0.5 / (_INCHES_WIDE * _DPI)


def save_gantt(
    timeline: Timeline, path: str | os.PathLike[str], *, title: str | None = None
) -> None:
    """Draw the timeline and write it as PNG to `path`.

    Raises
    ------
    InputError
        Where matplotlib is not installed, or there is no event to draw.
    """
    rows = _rows(timeline.events)
    if not rows:
        raise InputError("there is no event to draw: the run did nothing")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "a Gantt picture needs matplotlib: pip install 'hdgemm[plot]' (or ask for the trace)"
        ) from error
    # Figure and canvas of its own: pyplot would keep global state and ask for a display.
    figure = Figure(figsize=(_INCHES_WIDE, 1.1 + 0.42 * len(rows)), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, rows, timeline.seconds)
    if title:
        axes.set_title(title, fontsize=11)
    canvas.print_figure(path, format="png", dpi=_DPI)


def _rows(events: Sequence[Event]) -> dict[tuple[str, Stage], list[Event]]:
    devices = dict.fromkeys(event.device for event in events)
    rows: dict[tuple[str, Stage], list[Event]] = {
        (device, stage): [] for device in devices for stage in STAGES
    }
    for event in events:
        rows[event.device, event.stage].append(event)
    return {row: found for row, found in rows.items() if found}


def _draw(axes: Axes, rows: dict[tuple[str, Stage], list[Event]], seconds: float) -> None:
    devices = list(dict.fromkeys(device for device, _ in rows))
    ticks: list[float] = []
    for place, ((device, stage), events) in enumerate(rows.items()):
        # A gap before each further device keeps its rows together.
        y = place + 0.6 * devices.index(device)
        ticks.append(y)
        for parity, colour in enumerate(_SHADES[stage]):
            own = [event for event in events if event.unit % 2 == parity]
            bars = _merged(own, seconds * _RESOLUTION)
            axes.broken_barh(bars, (y - 0.36, 0.72), facecolors=colour, linewidth=0)
    several = len(devices) > 1
    labels = [f"{device}  {stage}" if several else stage for device, stage in rows]
    axes.set_yticks(ticks, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, seconds)
    axes.set_xlabel("seconds" if several else f"seconds on {devices[0]}")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _merged(events: Sequence[Event], gap: float) -> list[tuple[float, float]]:
    """Return starts and lengths of bars: those that touch on paper made one, none too thin."""
    bars: list[tuple[float, float]] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if bars and start <= sum(bars[-1]) + gap:
            first, length = bars[-1]
            bars[-1] = (first, max(first + length, end) - first)
        else:
            bars.append((start, max(end - start, 3 * gap)))
    return bars
