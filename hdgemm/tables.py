"""Tables of text, for a terminal and for a notebook."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_printable(character: str) -> bool:
    """Say whether a character is printable, or a space of any script: ideographic, no-break."""
    return character.isprintable() or unicodedata.category(character) == "Zs"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in rows below the headings of their columns, with a title above that may be empty.

    With `text`, columns of words are aligned left like the first one; other columns right.
    """

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    title: str = ""
    text: bool = False

    def lines(self) -> list[str]:
        """Return the table as lines of text."""
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def padded(line: tuple[str, ...]) -> str:
            first, *others = (
                cell.ljust(width) if self.text or not place else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            return "  ".join([first, *others]).rstrip()

        return [*([self.title] if self.title else []), *map(padded, lines)]

    def html(self) -> str:
        """Return the table as HTML."""
        head = "".join(f"<th>{escape(text)}</th>" for text in self.heads)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        title = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
