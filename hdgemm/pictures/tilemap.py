"""C coloured by the device that computed it, tile by tile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError

if TYPE_CHECKING:
    import os

    from hdgemm.run.split_report import SplitReport

#: Hues that differ in lightness too, for eyes and printers that do not see them.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
_INCHES: Final = 7.0
_DPI: Final = 110


def save_tilemap(
    split: SplitReport,
    extents: tuple[int, int],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
) -> None:
    """Draw who computed which tile of an m×n C and write it as PNG to `path`.

    Parameters
    ----------
    extents
        m and n.

    Raises
    ------
    InputError
        Where matplotlib is not installed, or there is no tile to draw.
    """
    if not any(share.tiles for share in split.shares.values()):
        raise InputError("there is no tile to draw: the run did nothing")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import PatchCollection
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch, Rectangle
    except ImportError as error:
        raise InputError(
            "a tile map needs matplotlib: pip install 'hdgemm[plot]' (or save the report)"
        ) from error
    m, n = extents
    figure = Figure(figsize=(_INCHES, _INCHES), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    legend = []
    for place, (name, share) in enumerate(split.shares.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        tiles = [Rectangle((t.col, t.row), t.cols, t.rows) for t in share.tiles]
        # White edges show the tiles; thin ones, for there may be thousands.
        axes.add_collection(
            PatchCollection(tiles, facecolor=colour, edgecolor="white", linewidth=0.4)
        )
        legend.append(Patch(color=colour, label=f"{name}  {100 * share.used:.1f} %"))
    axes.set_xlim(0, n)
    axes.set_ylim(m, 0)
    axes.set_aspect("equal" if 0.2 < m / n < 5 else "auto")
    axes.set_xlabel("columns of C")
    axes.set_ylabel("rows of C")
    figure.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False)
    if title:
        axes.set_title(title, fontsize=10)
    canvas.print_figure(path, format="png", dpi=_DPI)
