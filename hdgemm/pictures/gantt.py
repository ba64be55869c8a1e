"""Gantt chart of a timeline: a row for each stage or phase, a group of rows for each device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.pictures.figure import DPI, new_figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hdgemm.pictures.figure import Target
    from hdgemm.pipeline.timeline import Event, Timeline

#: Okabe and Ito's colours, which colour-blind readers can tell apart. Odd work units have the
#: second, lighter shade. Rows are in this order: stages of products, phases of factorisations.
_SHADES: Final[dict[str, tuple[str, str]]] = {
    "load1": ("#0072b2", "#66aad1"),
    "load2": ("#56b4e9", "#9ad2f2"),
    "mult1": ("#d55e00", "#e69e66"),
    "store1": ("#cc79a7", "#e0afca"),
    "store2": ("#009e73", "#66c5ab"),
    "load": ("#0072b2", "#66aad1"),
    "update": ("#d55e00", "#e69e66"),
    "panel": ("#cc79a7", "#e0afca"),
    "store": ("#009e73", "#66c5ab"),
    "interchange": ("#56b4e9", "#9ad2f2"),
    "residual": ("#e69f00", "#f0c566"),
}
_INCHES_WIDE: Final = 11.0
#: Half a pixel, as a fraction of the run's length. Bars closer than it are drawn as one, and no
#: bar is narrower than three times it.
_RESOLUTION: Final = 0.5 / (_INCHES_WIDE * DPI)


def save_gantt(timeline: Timeline, path: Target, *, title: str | None = None) -> None:
    """Draw the timeline and write it as PNG to `path`.

    Raises
    ------
    InputError
        Where Matplotlib is not installed, or there is no event to draw.
    """
    rows = _rows(timeline.events)
    if not rows:
        raise InputError("there is no event to draw: the run did nothing")
    figure = new_figure(_INCHES_WIDE, 1.1 + 0.42 * len(rows), "a Gantt chart")
    axes = figure.add_subplot()
    _draw(axes, rows, timeline.seconds)
    axes.set_title(title or "", fontsize=11)
    figure.savefig(path, format="png", dpi=DPI)


def _rows(events: Sequence[Event]) -> dict[tuple[str, str], list[Event]]:
    devices = dict.fromkeys(event.device for event in events)
    rows: dict[tuple[str, str], list[Event]] = {
        (device, row): [] for device in devices for row in _SHADES
    }
    for event in events:
        # On a device, which copies while it multiplies, stages say more than phases.
        by_phase = event.device == "host" and event.phase in _SHADES
        rows[event.device, event.phase if by_phase else event.stage].append(event)
    return {row: found for row, found in rows.items() if found}


def _draw(axes: Axes, rows: dict[tuple[str, str], list[Event]], seconds: float) -> None:
    devices = list(dict.fromkeys(device for device, _ in rows))
    ticks: list[float] = []
    for place, ((device, stage), events) in enumerate(rows.items()):
        # A gap separates the rows of one device from the next device's.
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
    where = "" if several else f" on {devices[0]}"
    axes.set_xlabel(f"time{where} (s); shades alternate between work units")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _merged(events: Sequence[Event], gap: float) -> list[tuple[float, float]]:
    """Return starts and lengths of bars; those closer than `gap` are one bar."""
    bars: list[tuple[float, float]] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if bars and start <= sum(bars[-1]) + gap:
            first, length = bars[-1]
            bars[-1] = (first, max(first + length, end) - first)
        else:
            bars.append((start, max(end - start, 3 * gap)))
    return bars
