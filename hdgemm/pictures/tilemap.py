"""Map of C, each tile in the colour of the device that computed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.errors import InputError
from hdgemm.pictures.gantt import new_figure

if TYPE_CHECKING:
    import os

    from hdgemm.run.split_report import SplitReport

#: Okabe and Ito's colours, which colour-blind readers can tell apart, and grey.
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
    """Draw which device computed which tile of an m×n C and write it as PNG to `path`.

    Parameters
    ----------
    extents
        m and n.

    Raises
    ------
    InputError
        Where Matplotlib is not installed, or there is no tile to draw.
    """
    if not any(share.tiles for share in split.shares.values()):
        raise InputError("there is no tile to draw: the run did nothing")
    figure = new_figure(_INCHES, _INCHES, "a tile map")
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Patch, Rectangle

    axes = figure.add_subplot()
    legend = []
    for place, (name, share) in enumerate(split.shares.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        tiles = [Rectangle((t.col, t.row), t.cols, t.rows) for t in share.tiles]
        axes.add_collection(
            PatchCollection(tiles, facecolor=colour, edgecolor="white", linewidth=0.4)
        )
        legend.append(Patch(color=colour, label=f"{name}  {100 * share.used:.1f} %"))
    m, n = extents
    axes.set(xlim=(0, n), ylim=(m, 0), xlabel="column of C", ylabel="row of C")
    axes.set_aspect("equal" if 0.2 < m / n < 5 else "auto")
    axes.set_title(title or "", fontsize=10)
    figure.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, format="png", dpi=_DPI)
