"""What all pictures share: figures without a display, colours, PNG within HTML."""

from __future__ import annotations

import base64
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from hdgemm.errors import InputError, load_extra

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from typing import TypeAlias

    from matplotlib.figure import Figure

    #: Where a picture is written: a file's name, or an open file.
    Target: TypeAlias = str | os.PathLike[str] | BinaryIO

#: Okabe and Ito's colours, which colour-blind readers can tell apart, and grey.
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999")
DPI: Final = 110


def new_figure(width: float, height: float, what: str) -> Figure:
    """Return a figure of `width` × `height` inches, without pyplot's global state or a display.

    Raise `InputError`, which names `what`, where Matplotlib is not installed.
    """
    module = _matplotlib("figure", what)
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained")
    return figure


def check_pictures(what: str) -> None:
    """Raise the error of `new_figure`, for `what` will be drawn at the end of a long run."""
    _matplotlib("figure", what)
    _matplotlib("backends.backend_agg", what)  # writes PNG


def _matplotlib(module: str, what: str) -> Any:
    return load_extra(f"matplotlib.{module}", f"{what} needs Matplotlib", "plot")


def inline_picture(save: Callable[[BinaryIO], None], caption: str) -> str:
    """Return what `save` draws as HTML; nothing without Matplotlib or without anything to draw."""
    png = BytesIO()
    try:
        save(png)
    except InputError:
        return ""
    return f'<img alt="{escape(caption)}" src="{data_url(png.getvalue())}">'


def data_url(png: bytes) -> str:
    """Return a PNG picture as the address of an image within HTML."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
