"""Report of a profile: its tables, a self-contained HTML page, and all files that are saved."""

from __future__ import annotations

import json
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hdgemm.pictures.figure import data_url
from hdgemm.pictures.gantt import save_gantt
from hdgemm.pictures.trace import save_trace
from hdgemm.profiling._charts import draw_charts
from hdgemm.profiling._samples import FAR_OFF, Change
from hdgemm.tables import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from hdgemm.pipeline.timeline import Timeline
    from hdgemm.profiling._charts import Chart

    Report = Mapping[str, Any]
    Rows = list[tuple[str, ...]]

_CONFIRMED: Final = {True: "confirmed", False: "not confirmed", None: "cannot be told here"}
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #5b636d; --paper: #ffffff;
  --line: #d5d9de; --warn: #9a3412; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --quiet: #9aa4af; --paper: #16191d; --line: #343b43; --warn: #fdba74; }
}
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
h2, caption { font-size: 1.15rem; font-weight: 600; margin-top: 2rem; text-align: left; }
.quiet, figcaption { color: var(--quiet); }
.warning { color: var(--warn); font-weight: 600; }
.verdict p:first-child { font-size: 1.15rem; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 1rem 0; max-width: 100%; }
img { max-width: 100%; height: auto; }
img.paper { background: #ffffff; }
"""


class Section(NamedTuple):
    """A table with the names of its charts, and sentences below it."""

    table: Table
    pictures: tuple[str, ...]
    remarks: tuple[str, ...]


def sections(report: Report) -> list[Section]:
    """Return all tables of a report (as `Profile.to_dict` returns it) that have rows."""
    verdict = report["verdict"] or {"observations": ()}
    observed: Rows = [
        (str(each["number"]), each["claim"], _CONFIRMED[each["confirmed"]], each["why"])
        for each in verdict["observations"]
    ]
    found: list[tuple[str, tuple[str, ...], Rows, tuple[str, ...], tuple[str, ...]]] = [
        (
            "Strategies",
            (
                "strategy",
                "GFLOP/s",
                "gain over the row above",
                "efficiency",
                "spread",
                "busy time of each stage (share of the run)",
            ),
            _ladder(report),
            ("ladder", "stages"),
            (),
        ),
        (
            "Scaling",
            ("configuration", "GFLOP/s", "peak", "efficiency", "spread"),
            _scaling(report),
            ("scaling", "sizes"),
            _cpu(report),
        ),
        (
            "Contention",
            ("stage", "alone", "with all stages", "kept", "spread"),
            _bandwidth(report),
            ("bandwidth", "matrix"),
            (),
        ),
        (
            "Observations of the paper",
            ("number", "the paper observed", "here", "because"),
            observed,
            (),
            (),
        ),
        (
            "Predicted and measured time",
            ("run", "stage", "predicted", "measured", "difference", f"within {FAR_OFF:.0%}"),
            _predictions(report),
            (),
            (),
        ),
    ]
    return [
        Section(Table(heads, rows, title, text=True), pictures, remarks)
        for title, heads, rows, pictures, remarks in found
        if rows
    ]


def _ladder(report: Report) -> Rows:
    ladder = report["ladder"]
    gains = [
        "–",
        *(
            Change(old["gflops"], new["gflops"], max(old["spread"], new["spread"])).words()
            for old, new in pairwise(ladder.values())
        ),
    ]
    return [
        (
            name,
            f"{row['gflops']:.4g}",
            gain,
            _part(row["efficiency"]),
            _part(row["spread"]),
            ", ".join(f"{stage} {share:.0%}" for stage, share in row["stage_shares"].items()),
        )
        for (name, row), gain in zip(ladder.items(), gains, strict=False)
    ]


def _scaling(report: Report) -> Rows:
    return [
        (
            name,
            f"{row['gflops']:.4g}",
            f"{row['peak_gflops']:.4g}",
            _part(row["efficiency"]),
            _part(row["spread"]),
        )
        for name, row in report["scaling"].items()
    ]


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
        (
            stage,
            f"{row['alone']:.4g} {row['unit']}",
            f"{row['contended']:.4g} {row['unit']}",
            _part(row["kept"]),
            _part(row["spread"]),
        )
        for stage, row in report["bandwidth"].items()
    ]


def _predictions(report: Report) -> Rows:
    return [
        (
            row["run"],
            row["what"],
            f"{row['predicted']:.4g} s",
            f"{row['measured']:.4g} s",
            f"{100 * row['off']:+.1f} %",
            "no" if row["far_off"] else "yes",
        )
        for row in report["predictions"]
    ]


def _part(value: float) -> str:
    return f"{100 * value:.0f} %"


def save_profile(
    report: Report, timelines: Mapping[str, Timeline], folder: str | os.PathLike[str]
) -> None:
    """Write a report (as `Profile.to_dict` returns it) with its page, charts and timelines.

    The folder is made if need be.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=2, allow_nan=False)
    (place / "report.json").write_text(text + "\n", encoding="utf-8")
    charts = draw_charts(report)
    for chart in charts:
        (place / f"{chart.name}.png").write_bytes(chart.light)
    gantts: dict[str, bytes] = {}
    for strategy, timeline in timelines.items():
        if not timeline.events:
            continue
        save_trace(timeline, place / f"trace-{strategy}.json")
        picture = place / f"timeline-{strategy}.png"
        save_gantt(timeline, picture, title=f"{strategy}: {timeline.seconds:.3g} s")
        gantts[strategy] = picture.read_bytes()
    (place / "report.html").write_text(render_page(report, charts, gantts), encoding="utf-8")


def render_page(report: Report, charts: Sequence[Chart], timelines: Mapping[str, bytes]) -> str:
    """Return the page of a report (as `Profile.to_dict` returns it) with PNG pictures by strategy.

    It makes no request to any network.
    """
    pictures = {chart.name: _chart(chart) for chart in charts}
    title = f"Contention profile of {report['device']}"
    verdict = report["verdict"] or {"text": ()}
    parts = [f'<section class="verdict">{_paragraphs(verdict["text"])}</section>']
    for section in sections(report):
        drawn = "".join(pictures.get(name, "") for name in section.pictures)
        parts.append(
            f"<section>{_scrolling(section.table)}{_paragraphs(section.remarks)}"
            f'<div class="pictures">{drawn}</div></section>'
        )
    body = "\n".join([_head(title, report), *parts, _timelines(timelines), _setting(report)])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _head(title: str, report: Report) -> str:
    product = report["product"]
    words = (
        f"{product['m']} × {product['n']} × {product['k']} (m × n × k), {product['dtype']}, "
        f"matrices in {product['place']} · {report['when']}"
    )
    lines = f'<h1>{escape(title)}</h1><p class="quiet">{escape(words)}</p>'
    if report["complete"]:
        return lines
    return lines + '<p class="warning">Interrupted: this is what was measured until then.</p>'


def _timelines(pictures: Mapping[str, bytes]) -> str:
    drawn = "".join(
        f'<figure><img class="paper" alt="timeline of {escape(name)}" src="{data_url(png)}">'
        f"<figcaption>Timeline of {escape(name)}</figcaption></figure>"
        for name, png in pictures.items()
    )
    return f"<section><h2>Timelines</h2>{drawn}</section>" if drawn else ""


def _setting(report: Report) -> str:
    values = {
        "command": report["command"],
        "rates from": report["rates_from"],
        **report["machine"],
        **report["versions"],
    }
    rows = [(key, str(value)) for key, value in values.items()]
    notes = "".join(f"<li>{escape(note)}</li>" for note in report["notes"])
    return (
        f"<section><h2>Notes</h2><ul>{notes}</ul><h2>Machine and versions</h2>"
        f"{_scrolling(Table(('item', 'value'), rows, text=True))}</section>"
    )


def _chart(chart: Chart) -> str:
    return (
        '<figure><picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="{data_url(chart.dark)}"><img alt="{escape(chart.caption)}" '
        f'src="{data_url(chart.light)}"></picture>'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def _paragraphs(lines: Sequence[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _scrolling(table: Table) -> str:
    return f'<div class="scroll">{table.html()}</div>'
