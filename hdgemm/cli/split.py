"""How several devices share a product: what the command line gives, and the table after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.cli.tables import new_table
from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from hdgemm.run.split_report import SplitReport


def parse_split(texts: Sequence[str] | None) -> dict[str, float] | None:
    """Read ``NAME=SHARE`` as often as it was given: ``host=0.2``.

    Raises
    ------
    InputError
        For a text of another form, or a device named twice.
    """
    shares: dict[str, float] = {}
    for text in texts or ():
        name, found, number = text.rpartition("=")
        try:
            share = float(number)
        except ValueError:
            found = ""
        if not found or not name:
            raise InputError(f"cannot read {text!r} as a share; write NAME=SHARE like host=0.2")
        if name in shares:
            raise InputError(f"the share of {name} is given twice")
        shares[name] = share
    return shares or None


def split_table(split: SplitReport) -> Table:
    """Return a row per device: shares, speeds, when it was done."""
    table = new_table()
    table.add_column("device", no_wrap=True)
    for heading in ("planned", "used", "tiles", "GFLOP/s", "of alone", "kernel", "done at"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, share in split.shares.items():
        table.add_row(
            name,
            f"{100 * share.planned:.1f} %",
            f"{100 * share.used:.1f} %",
            f"{len(share.tiles)}",
            f"{share.flop_rate / 1e9:.1f}",
            "–" if share.of_alone is None else f"{100 * share.of_alone:.0f} %",
            f"{share.kernel_rate / 1e9:.1f}",
            f"{share.finished:.2f} s",
        )
    return table


def split_lines(split: SplitReport) -> list[str]:
    """Return how evenly it ended, and who did not go on to the end."""
    even = (
        f"imbalance at the end: {100 * split.imbalance:.1f} % of the run;"
        f" {100 * split.efficiency:.1f} % of the kernels' rates together"
    )
    return [even, *split.notes()]
