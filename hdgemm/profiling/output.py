"""A profile as files: report.html, report.json, pictures and traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hdgemm.pictures.gantt import save_gantt
from hdgemm.pictures.trace import save_trace
from hdgemm.profiling.charts import draw_charts
from hdgemm.profiling.page import render_page

if TYPE_CHECKING:
    import os

    from hdgemm.profiling.results import Profile


def save_profile(profile: Profile, folder: str | os.PathLike[str]) -> Path:
    """Write everything into `folder`, which is made if need be; return the page's path."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    values = profile.to_dict()
    text = json.dumps(values, indent=2, allow_nan=False)
    (place / "report.json").write_text(text + "\n", encoding="utf-8")
    charts = draw_charts(values)
    for chart in charts:
        (place / f"{chart.name}.png").write_bytes(chart.light)
    gantts: dict[str, bytes] = {}
    for strategy, timeline in profile.timelines.items():
        if not timeline.events:
            continue
        save_trace(timeline, place / f"trace-{strategy}.json")
        picture = place / f"timeline-{strategy}.png"
        save_gantt(timeline, picture, title=f"{strategy}: {timeline.seconds:.3g} s")
        gantts[strategy] = picture.read_bytes()
    page = place / "report.html"
    page.write_text(render_page(values, charts, gantts), encoding="utf-8")
    return page
