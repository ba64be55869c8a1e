"""Maps of C: each tile in the colour of its device, or of its place in the order of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hdgemm.errors import InputError
from hdgemm.pictures.figure import COLOURS, DPI, new_figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from hdgemm.pictures.figure import Target

    #: A tile: its first row and column, and its extents.
    TileRect = tuple[int, int, int, int]

_INCHES: Final = 7.0
_INCHES_OF_ORDER: Final = 4.5


def save_tilemap(
    tiles: Mapping[str, Sequence[TileRect]],
    extents: tuple[int, int],
    path: Target,
    *,
    title: str | None = None,
) -> None:
    """Draw which device computed which tile of an m×n C and write it as PNG to `path`.

    `tiles` are each device's, as `SplitReport.tiles`; `extents` are m and n. Raise
    `InputError` where Matplotlib is not installed, or there is no tile to draw.
    """
    if not any(tiles.values()):
        raise InputError("there is no tile to draw: the run did nothing")
    figure = new_figure(_INCHES, _INCHES, "a tile map")
    from matplotlib.patches import Patch

    axes = figure.add_subplot()
    legend = []
    elements = extents[0] * extents[1]
    for place, (name, own) in enumerate(tiles.items()):
        colour = COLOURS[place % len(COLOURS)]
        _add(axes, own, facecolor=colour)
        part = sum(rows * cols for _, _, rows, cols in own) / elements
        legend.append(Patch(color=colour, label=f"{name}  {part:.1%}"))
    _label(axes, extents, title)
    figure.legend(handles=legend, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, format="png", dpi=DPI)


def save_order(tiles: Sequence[TileRect], extents: tuple[int, int], path: Target) -> None:
    """Draw the order in which the tiles of an m×n C are computed and write it as PNG to `path`.

    Raises
    ------
    InputError
        Where Matplotlib is not installed, or there are no tiles.
    """
    if not tiles:
        raise InputError("there is no tile to draw: the plan has no work units")
    figure = new_figure(_INCHES_OF_ORDER, _INCHES_OF_ORDER, "a tile map")
    axes = figure.add_subplot()
    drawn = _add(axes, tiles, cmap="cividis")
    drawn.set_array(list(range(1, len(tiles) + 1)))
    _label(axes, extents, None)
    figure.colorbar(drawn, ax=axes, label="order of the work units", shrink=0.8)
    figure.savefig(path, format="png", dpi=DPI)


def _add(axes: Axes, tiles: Sequence[TileRect], **style: Any) -> Any:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    patches = [Rectangle((col, row), cols, rows) for row, col, rows, cols in tiles]
    return axes.add_collection(PatchCollection(patches, edgecolor="white", linewidth=0.4, **style))


def _label(axes: Axes, extents: tuple[int, int], title: str | None) -> None:
    m, n = extents
    axes.set(xlim=(0, n), ylim=(m, 0), xlabel="column of C", ylabel="row of C")
    axes.set_aspect("equal" if 0.2 < m / n < 5 else "auto")
    axes.set_title(title or "", fontsize=10)
