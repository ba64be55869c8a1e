"""A profile's tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.cli.tables import new_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from hdgemm.profiling.results import Profile


def profile_tables(profile: Profile) -> Iterator[Table]:
    """Yield the ladder, scaling, bandwidths, and the paper's figures where they are simulated."""
    speeds = {**{name: rung.rate for name, rung in profile.ladder.items()}, **profile.scaling}
    if speeds:
        table = _table("configuration", "GFLOP/s", "efficiency", "spread")
        for name, rate in speeds.items():
            speed = f"{rate.gflops.median:.4g}"
            table.add_row(name, speed, f"{rate.efficiency:.0%}", f"{rate.gflops.spread:.0%}")
        yield table
    if profile.bandwidth:
        table = _table("stage", "alone", "with all stages", "kept")
        for stage, each in profile.bandwidth.items():
            alone, contended = (
                f"{rate.median:.4g} {each.unit}" for rate in (each.alone, each.contended)
            )
            table.add_row(stage, alone, contended, f"{each.kept:.0%}")
        yield table
    if profile.paper:
        table = _table("figure", "paper", "simulated", "off")
        for row in profile.paper:
            table.add_row(row.figure, f"{row.paper:.4g}", f"{row.simulated:.4g}", f"{row.off:+.1%}")
        yield table


def _table(first: str, *others: str) -> Table:
    table = new_table()
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
