"""One self-contained HTML page of a profile: it asks nothing of any network."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Any, Final

from hdgemm.profiling.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hdgemm.profiling.charts import Chart

    Report = Mapping[str, Any]

_VERDICTS: Final = {True: "confirmed", False: "not confirmed", None: "cannot be told here"}


def render_page(report: Report, charts: Sequence[Chart], timelines: Mapping[str, bytes]) -> str:
    """Return the page.

    Parameters
    ----------
    report
        As `Profile.to_dict` gives it.
    charts, timelines
        Pictures, as PNG; timelines by strategy.
    """
    pictures = {chart.name: _chart(chart) for chart in charts}
    title = f"Contention profile of {report['device']}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        _head(report),
        _verdict(report),
        _paper(report),
        _section("The ladder", pictures, ("ladder", "stages"), _ladder(report)),
        _section("Scaling", pictures, ("scaling", "sizes"), _scaling(report)),
        _section("Contention", pictures, ("bandwidth", "matrix"), _bandwidth(report)),
        _section("Predicted against measured", pictures, (), _predictions(report)),
        _timelines(timelines),
        _setting(report),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _head(report: Report) -> str:
    product = report["product"]
    words = [
        (
            f"{product['m']} × {product['n']} × {product['k']}, {product['dtype']}, "
            f"matrices in {product['place']}"
        ),
        str(report["kind"]),
        str(report["when"]),
    ]
    line = f'<p class="quiet">{escape(" · ".join(words))}</p>'
    if report["complete"]:
        return line
    return line + '<p class="warning">Interrupted: this is what was done until then.</p>'


def _verdict(report: Report) -> str:
    verdict = report["verdict"]
    if verdict is None:
        return ""
    text = "".join(f"<li>{escape(line)}</li>" for line in verdict["text"])
    rows = [
        (str(each["number"]), each["claim"], _VERDICTS[each["confirmed"]], each["why"])
        for each in verdict["observations"]
    ]
    table = _table(("", "the paper observed", "here", "because"), rows)
    return f'<section><h2>Verdict</h2><ul class="verdict">{text}</ul>{table}</section>'


def _paper(report: Report) -> str:
    rows = [
        (each["figure"], f"{each['paper']:.4g}", f"{each['simulated']:.4g}", _percent(each["off"]),
         "" if abs(each["off"]) <= 0.05 else "does not fit")
        for each in report["paper"]
    ]  # fmt: skip
    if not rows:
        return ""
    heads = ("figure", "paper", "simulated", "off", "")
    return f"<section><h2>The paper and its simulation</h2>{_table(heads, rows)}</section>"


def _section(title: str, pictures: Mapping[str, str], names: Iterable[str], table: str) -> str:
    drawn = "".join(pictures.get(name, "") for name in names)
    if not drawn and not table:
        return ""
    return f"<section><h2>{escape(title)}</h2>{table}<div class='pictures'>{drawn}</div></section>"


def _ladder(report: Report) -> str:
    rows = [
        (name, f"{row['gflops']:.4g}", _part(row["efficiency"]), _part(row["spread"]),
         ", ".join(f"{stage} {share:.0%}" for stage, share in row["stage_shares"].items()))
        for name, row in report["ladder"].items()
    ]  # fmt: skip
    return _table(("strategy", "GFLOP/s", "efficiency", "spread", "busy, part of the run"), rows)


def _scaling(report: Report) -> str:
    rows = [
        (name, f"{row['gflops']:.4g}", f"{row['peak_gflops']:.4g}", _part(row["efficiency"]),
         _part(row["spread"]))
        for name, row in report["scaling"].items()
    ]  # fmt: skip
    extra = ""
    if len(report["cpu"]) == 2:
        cpu = report["cpu"]
        extra += (
            f"<p>The CPU: {cpu['alone']:.4g} GFLOP/s alone, {cpu['within']:.4g} within a hybrid "
            "run (Figure 11).</p>"
        )
    if report["imbalance"] is not None:
        extra += f"<p>Imbalance: {report['imbalance']:.1%} of the run (Figure 12).</p>"
    heads = ("configuration", "GFLOP/s", "of at most", "efficiency", "spread")
    return _table(heads, rows) + extra


def _bandwidth(report: Report) -> str:
    rows = [
        (stage, f"{row['alone']:.4g} {row['unit']}", f"{row['contended']:.4g} {row['unit']}",
         _part(row["kept"]), _part(row["spread"]))
        for stage, row in report["bandwidth"].items()
    ]  # fmt: skip
    return _table(("stage", "alone", "with all stages", "kept", "spread"), rows)


def _predictions(report: Report) -> str:
    rows = [
        (row["run"], row["what"], f"{row['predicted']:.4g} s", f"{row['measured']:.4g} s",
         _percent(row["off"]), "more than 10 % off" if row["far_off"] else "")
        for row in report["predictions"]
    ]  # fmt: skip
    return _table(("run", "what", "predicted", "measured", "off", ""), rows)


def _timelines(pictures: Mapping[str, bytes]) -> str:
    drawn = "".join(
        f'<figure><img class="paper" alt="timeline of {escape(name)}" src="{_data(png)}">'
        f"<figcaption>Timeline of {escape(name)}</figcaption></figure>"
        for name, png in pictures.items()
    )
    return f"<section><h2>Timelines</h2>{drawn}</section>" if drawn else ""


def _setting(report: Report) -> str:
    rows = [("command", str(report["command"])), ("rates from", str(report["rates_from"]))]
    rows += [(key, str(value)) for key, value in report["machine"].items()]
    rows += [(key, str(value)) for key, value in report["versions"].items()]
    notes = "".join(f"<li>{escape(note)}</li>" for note in report["notes"])
    return (
        f"<section><h2>Notes</h2><ul>{notes}</ul><h2>Machine and versions</h2>"
        f"{_table(('', ''), rows)}</section>"
    )


def _chart(chart: Chart) -> str:
    return (
        '<figure><picture><source media="(prefers-color-scheme: dark)" '
        f'srcset="{_data(chart.dark)}"><img alt="{escape(chart.caption)}" '
        f'src="{_data(chart.light)}"></picture>'
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
    )


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _part(value: float) -> str:
    return f"{100 * value:.0f} %"


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"
