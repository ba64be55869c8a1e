"""Tables of a profile, for the page and for a terminal."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.profiling.results import FAR_OFF, Change, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    Report = Mapping[str, Any]
    Rows = list[tuple[str, ...]]

_CONFIRMED: Final = {True: "confirmed", False: "not confirmed", None: "cannot be told here"}
#: A simulated figure that is further from the paper's than this does not fit.
_FITS: Final = 0.05


class Table(NamedTuple):
    """One table.

    Parameters
    ----------
    pictures
        Names of the charts that belong to it.
    remarks
        Sentences below it.
    """

    title: str
    heads: tuple[str, ...]
    rows: Rows
    pictures: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def tables(report: Report) -> list[Table]:
    """Return all tables of a report (as `Profile.to_dict` returns it) that have rows."""
    verdict = report["verdict"] or {"advice": (), "observations": ()}
    found = [
        Table("Strategies", ("strategy", "GFLOP/s", "over the one above", "efficiency", "spread",
              "busy time of each stage, of the run"), _ladder(report), ("ladder", "stages")),
        Table("Scaling", ("configuration", "GFLOP/s", "peak", "efficiency", "spread"),
              _scaling(report), ("scaling", "sizes"), _cpu(report)),
        Table("Contention", ("stage", "alone", "with all stages", "kept", "spread"),
              _bandwidth(report), ("bandwidth", "matrix")),
        Table("What would help", ("change", "gain in speed", "source"),
              [(each["what"], percent(each["gain"]), each["source"])
               for each in verdict["advice"]]),
        Table("Observations of the paper", ("number", "the paper observed", "here", "because"),
              [(str(each["number"]), each["claim"], _CONFIRMED[each["confirmed"]], each["why"])
               for each in verdict["observations"]]),
        Table("The paper and its simulation",
              ("figure", "paper", "simulated", "difference", f"within {_FITS:.0%}"),
              _references(report)),
        Table("Predicted and measured time",
              ("run", "stage", "predicted", "measured", "difference", f"within {FAR_OFF:.0%}"),
              _predictions(report)),
    ]  # fmt: skip
    return [table for table in found if table.rows]


def _ladder(report: Report) -> Rows:
    ladder = report["ladder"]
    gains = ["–", *(
        Change(old["gflops"], new["gflops"], max(old["spread"], new["spread"])).words()
        for old, new in pairwise(ladder.values())
    )]  # fmt: skip
    return [
        (name, f"{row['gflops']:.4g}", gain, _part(row["efficiency"]), _part(row["spread"]),
         ", ".join(f"{stage} {share:.0%}" for stage, share in row["stage_shares"].items()))
        for (name, row), gain in zip(ladder.items(), gains, strict=False)
    ]  # fmt: skip


def _scaling(report: Report) -> Rows:
    return [
        (name, f"{row['gflops']:.4g}", f"{row['peak_gflops']:.4g}", _part(row["efficiency"]),
         _part(row["spread"]))
        for name, row in report["scaling"].items()
    ]  # fmt: skip


def _cpu(report: Report) -> tuple[str, ...]:
    found = []
    if len(report["cpu"]) == 2:
        cpu = report["cpu"]
        found.append(
            f"The CPU: {cpu['alone']:.4g} GFLOP/s alone, {cpu['within']:.4g} GFLOP/s within a "
            "hybrid run (Figure 11)."
        )
    if report["imbalance"] is not None:
        found.append(f"Imbalance: {report['imbalance']:.1%} of the run (Figure 12).")
    return tuple(found)


def _bandwidth(report: Report) -> Rows:
    return [
        (stage, f"{row['alone']:.4g} {row['unit']}", f"{row['contended']:.4g} {row['unit']}",
         _part(row["kept"]), _part(row["spread"]))
        for stage, row in report["bandwidth"].items()
    ]  # fmt: skip


def _references(report: Report) -> Rows:
    return [
        (row["figure"], f"{row['paper']:.4g}", f"{row['simulated']:.4g}",
         f"{100 * row['off']:+.1f} %", "yes" if abs(row["off"]) <= _FITS else "no")
        for row in report["paper"]
    ]  # fmt: skip


def _predictions(report: Report) -> Rows:
    return [
        (row["run"], row["what"], f"{row['predicted']:.4g} s", f"{row['measured']:.4g} s",
         f"{100 * row['off']:+.1f} %", "no" if row["far_off"] else "yes")
        for row in report["predictions"]
    ]  # fmt: skip


def _part(value: float) -> str:
    return f"{100 * value:.0f} %"
