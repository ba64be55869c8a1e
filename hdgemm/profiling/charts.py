"""The pictures of a profile, after the paper's figures, each for a light and for a dark page."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    Report = Mapping[str, Any]
    Draw = Callable[[Axes, Report], None]

_INK: Final = {"light": "#1f2328", "dark": "#e6e6e6"}
_PAPER: Final = {"light": "#ffffff", "dark": "#16191d"}
_COLOURS: Final = ("#0072b2", "#56b4e9", "#d55e00", "#7fbf7b", "#009e73", "#cc79a7")
#: To be read on either page.
_GREY: Final = "#888888"
_DPI: Final = 100


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture as PNG, for both kinds of page.

    Parameters
    ----------
    name
        Of its file.
    caption
        What it shows, and the paper's figure that it follows.
    """

    name: str
    caption: str
    light: bytes
    dark: bytes


def draw_charts(report: Report) -> list[Chart]:
    """Draw what the report holds; a part that is missing has no picture.

    Raises
    ------
    InputError
        Where matplotlib is not installed.
    """
    wanted: list[tuple[str, str, bool, Draw]] = [
        ("ladder", "Speed of each strategy, and over the one before (after Figures 5 and 6)",
         bool(report["ladder"]), _ladder),
        ("stages", "Busy time of each stage, as a part of the run (after Figures 3 and 7)",
         bool(report["ladder"]), _stages),
        ("scaling", "Efficiency when scaling (after Figure 8)", bool(report["scaling"]), _scaling),
        ("bandwidth", ("What each stage keeps of its own rate with everything running (after "
         "Figures 9 and 10)"), bool(report["bandwidth"]), _bandwidth),
        ("matrix", "What row keeps of its own rate while column runs beside it",
         bool(report["matrix"]), _matrix),
        ("sizes", "Speed and efficiency over sizes and depths (after Figure 5)",
         bool(report["sizes"]), _sizes),
    ]  # fmt: skip
    return [
        Chart(name, caption, _render(draw, report, "light"), _render(draw, report, "dark"))
        for name, caption, there, draw in wanted
        if there
    ]


def _render(draw: Draw, report: Report, theme: str) -> bytes:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "the pictures of a profile need matplotlib: pip install 'hdgemm[plot]'"
        ) from error
    figure = Figure(figsize=(6.4, 3.4), layout="constrained", facecolor=_PAPER[theme])
    axes = figure.add_subplot(facecolor=_PAPER[theme])
    draw(axes, report)
    _paint(axes, _INK[theme])
    stream = BytesIO()
    FigureCanvasAgg(figure).print_figure(stream, format="png", dpi=_DPI, facecolor=_PAPER[theme])
    return stream.getvalue()


def _paint(axes: Axes, ink: str) -> None:
    """Write everything in one ink."""
    axes.tick_params(colors=ink)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(ink)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(ink)
    legend = axes.get_legend()
    if legend is not None:
        legend.get_frame().set_alpha(0.0)
        for entry in legend.get_texts():
            entry.set_color(ink)
    for text in axes.texts:
        if text.get_gid() != "own":
            text.set_color(ink)


def _bars(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    spreads: Sequence[float],
) -> None:
    """Draw bars with a line as long as the spread: half of it on either side of the median."""
    half = [value * spread / 2 for value, spread in zip(values, spreads, strict=True)]
    bars = axes.bar(range(len(names)), values, color=_COLOURS[0], width=0.6, yerr=half,
                    error_kw={"ecolor": _GREY, "elinewidth": 1.2, "capsize": 4})  # fmt: skip
    axes.bar_label(bars, labels, padding=2, fontsize=8)
    axes.set_xticks(range(len(names)), [name.replace(" ", "\n", 1) for name in names], fontsize=8)
    axes.margins(y=0.15)


def _ladder(axes: Axes, report: Report) -> None:
    rows = report["ladder"]
    values = [row["gflops"] for row in rows.values()]
    labels = [f"{value:.4g}" for value in values]
    for number, (old, new) in enumerate(pairwise(values), 1):
        labels[number] += f"\n{new / old - 1:+.0%}" if old > 0 else ""
    names = [name.replace("-", "\n") for name in rows]
    _bars(axes, names, values, labels, [row["spread"] for row in rows.values()])
    axes.set_ylabel("GFLOP/s")


def _scaling(axes: Axes, report: Report) -> None:
    rows = report["scaling"]
    values = [row["efficiency"] for row in rows.values()]
    labels = [f"{value:.0%}" for value in values]
    _bars(axes, list(rows), values, labels, [row["spread"] for row in rows.values()])
    axes.set_ylabel("part of the peak")


def _stages(axes: Axes, report: Report) -> None:
    rows = report["ladder"]
    names = list(rows)
    width = 0.8 / len(STAGES)
    for place, stage in enumerate(STAGES):
        shares = [rows[name]["stage_shares"].get(stage, 0.0) for name in names]
        left = [number - 0.4 + width * (place + 0.5) for number in range(len(names))]
        axes.bar(left, shares, width=width, color=_COLOURS[place], label=stage)
    axes.set_xticks(range(len(names)), [name.replace("-", "\n") for name in names], fontsize=8)
    axes.set_ylabel("busy, part of the run")
    axes.legend(ncols=5, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.15))


def _bandwidth(axes: Axes, report: Report) -> None:
    rows = report["bandwidth"]
    values = [row["kept"] for row in rows.values()]
    labels = [f"{value:.0%}" for value in values]
    _bars(axes, list(rows), values, labels, [row["spread"] for row in rows.values()])
    axes.axhline(1.0, color=_GREY, linewidth=0.8, linestyle="--")
    axes.set_ylabel("part of the rate alone")


def _matrix(axes: Axes, report: Report) -> None:
    rows = report["matrix"]
    seen = {column for cells in rows.values() for column in cells}
    # In the order of the rows, so that who slows whom is seen on both sides of the diagonal.
    columns = [*(row for row in rows if row in seen), *sorted(seen - set(rows))]
    cells = [
        [rows[row].get(column, {}).get("median", float("nan")) for column in columns]
        for row in rows
    ]
    axes.imshow(cells, cmap="RdYlGn", vmin=0.0, vmax=1.1, aspect="auto")
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            if value == value:  # noqa: PLR0124 - not NaN: a probe beside itself
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7,
                          color="#111111", gid="own")  # fmt: skip
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_xlabel("runs beside")


def _sizes(axes: Axes, report: Report) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in report["sizes"]:
        lines.setdefault(row["series"], []).append((row["m"], row["gflops"]))
    for number, (series, points) in enumerate(lines.items()):
        sides, speeds = zip(*sorted(points), strict=True)
        axes.plot(sides, speeds, marker="o", color=_COLOURS[2 * number % 6], label=series)
    first = report["sizes"][0]
    if first["peak_gflops"] > 0:
        peak = first["peak_gflops"]
        right = axes.secondary_yaxis("right", functions=(lambda v: v / peak, lambda v: v * peak))
        right.set_ylabel("efficiency", color=_GREY)
        right.tick_params(colors=_GREY)
    axes.set_xlabel("m = n")
    axes.set_ylabel("GFLOP/s")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
