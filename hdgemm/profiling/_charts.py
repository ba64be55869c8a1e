"""Charts of a profile as PNG, for a light and a dark page, in colour-blind-safe colours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from hdgemm.pictures.figure import COLOURS, new_figure
from hdgemm.pipeline.plan import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    Report = Mapping[str, Any]
    Draw = Callable[[Axes, Report], None]

_INK: Final = {"light": "#1f2328", "dark": "#e6e6e6"}
_BACKGROUND: Final = {"light": "#ffffff", "dark": "#16191d"}
#: Legible on both pages.
_GREY: Final = "#888888"
_DPI: Final = 100


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture as PNG for both pages; `name` is its file's name."""

    name: str
    caption: str
    light: bytes
    dark: bytes


def draw_charts(report: Report) -> list[Chart]:
    """Draw the parts that the report has; raise `InputError` without Matplotlib."""
    return [
        Chart(name, caption, _render(draw, report, "light"), _render(draw, report, "dark"))
        for name, part, draw, caption in _CHARTS
        if report[part]
    ]


def _render(draw: Draw, report: Report, theme: str) -> bytes:
    figure = new_figure(6.4, 3.4, "a chart of a profile")
    from matplotlib.text import Text

    background = _BACKGROUND[theme]
    draw(figure.add_subplot(facecolor=background), report)
    ink = _INK[theme]
    for axes in figure.axes:
        axes.tick_params(colors=ink)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(ink)
        if (legend := axes.get_legend()) is not None:
            legend.get_frame().set_alpha(0.0)
    # Texts without a colour of their own have matplotlib's default.
    for text in figure.findobj(Text):
        if text.get_color() == "black":
            text.set_color(ink)
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI, facecolor=background)
    return stream.getvalue()


def _bars(axes: Axes, rows: Report, values: Sequence[float], labels: Sequence[str]) -> None:
    """Draw a bar for each row; its error bar is as long as the row's spread."""
    half = [value * row["spread"] / 2 for value, row in zip(values, rows.values(), strict=True)]
    bars = axes.bar(
        range(len(rows)),
        values,
        color=COLOURS[0],
        width=0.6,
        yerr=half,
        error_kw={"ecolor": _GREY, "elinewidth": 1.2, "capsize": 4},
    )
    axes.bar_label(bars, labels, padding=2, fontsize=8)
    _names(axes, rows)
    axes.margins(y=0.15)


def _names(axes: Axes, rows: Report) -> None:
    names = [name.replace("-", "\n").replace(" ", "\n", 1) for name in rows]
    axes.set_xticks(range(len(names)), names, fontsize=8)


def _percentages(axes: Axes, rows: Report, key: str) -> None:
    values = [100 * row[key] for row in rows.values()]
    _bars(axes, rows, values, [f"{value:.0f} %" for value in values])


def _ladder(axes: Axes, report: Report) -> None:
    rows = report["ladder"]
    values = [row["gflops"] for row in rows.values()]
    labels = [f"{value:.4g}" for value in values]
    for number, (old, new) in enumerate(pairwise(values), 1):
        labels[number] += f"\n{new / old - 1:+.0%}" if old > 0 else ""
    _bars(axes, rows, values, labels)
    axes.set_ylabel("speed (GFLOP/s)")


def _scaling(axes: Axes, report: Report) -> None:
    _percentages(axes, report["scaling"], "efficiency")
    axes.set_ylabel("speed (% of the peak)")


def _stages(axes: Axes, report: Report) -> None:
    rows = report["ladder"]
    width = 0.8 / len(STAGES)
    for place, stage in enumerate(STAGES):
        shares = [100 * row["stage_shares"].get(stage, 0.0) for row in rows.values()]
        left = [number - 0.4 + width * (place + 0.5) for number in range(len(rows))]
        axes.bar(left, shares, width=width, color=COLOURS[place], label=stage)
    _names(axes, rows)
    axes.set_ylabel("busy time (% of the run)")
    axes.legend(ncols=5, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.15))


def _bandwidth(axes: Axes, report: Report) -> None:
    _percentages(axes, report["bandwidth"], "kept")
    axes.axhline(100.0, color=_GREY, linewidth=0.8, linestyle="--")
    axes.set_ylabel("rate (% of the rate alone)")


def _matrix(axes: Axes, report: Report) -> None:
    rows = report["matrix"]
    seen = {column for cells in rows.values() for column in cells}
    # Columns in the order of the rows, so that a pair lies mirrored at the diagonal.
    columns = [*(row for row in rows if row in seen), *sorted(seen - set(rows))]
    cells = [
        [100 * rows[row].get(column, {}).get("median", math.nan) for column in columns]
        for row in rows
    ]
    image = axes.imshow(cells, cmap="cividis", vmin=0.0, vmax=100.0, aspect="auto")
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            missing = math.isnan(value)
            # Dark figures on the light end of the map, light ones on the dark end.
            colour = _GREY if missing else "#111111" if value > 50 else "#ffffff"
            axes.text(
                x,
                y,
                "–" if missing else f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=7,
                color=colour,
            )
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_xlabel("runs beside it")
    axes.set_ylabel("measured operation")
    assert axes.figure is not None  # noqa: S101  (it was made from one)
    bar = axes.figure.colorbar(image, ax=axes)
    bar.set_label("rate (% of the rate alone)", fontsize=8)


def _sizes(axes: Axes, report: Report) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in report["sizes"]:
        lines.setdefault(row["series"], []).append((row["m"], row["gflops"]))
    for number, (series, points) in enumerate(lines.items()):
        sides, speeds = zip(*sorted(points), strict=True)
        axes.plot(sides, speeds, marker="o", color=COLOURS[number], label=series)
    peak = report["sizes"][0]["peak_gflops"]
    if peak > 0:
        right = axes.secondary_yaxis(
            "right", functions=(lambda v: v / peak * 100, lambda v: v * peak / 100)
        )
        right.set_ylabel("efficiency (% of the peak)", color=_GREY)
        right.tick_params(colors=_GREY)
    axes.set_xlabel("m = n (rows and columns of C)")
    axes.set_ylabel("speed (GFLOP/s)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


#: Name, the part of the report that it shows, drawing function, caption.
_CHARTS: Final[tuple[tuple[str, str, Draw, str], ...]] = (
    (
        "ladder",
        "ladder",
        _ladder,
        "Speed of each strategy its gain over the one before, the spread (as Figures 5, 6)",
    ),
    ("stages", "ladder", _stages, "Busy time of each stage (as Figures 3 and 7)"),
    (
        "scaling",
        "scaling",
        _scaling,
        "Efficiency of one device, several devices, and the CPU (as Figure 8)",
    ),
    (
        "bandwidth",
        "bandwidth",
        _bandwidth,
        "Rate of each stage with all stages running (as Figures 9 and 10)",
    ),
    (
        "matrix",
        "matrix",
        _matrix,
        "Rate of the row's operation beside the column's (–: not measured beside itself)",
    ),
    ("sizes", "sizes", _sizes, "Speed over sizes and depths (as Figure 5)"),
)
