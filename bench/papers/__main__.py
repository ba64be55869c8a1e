"""Run a paper's program on its machine in virtual time, and compare the figures.

    python -m bench.papers PAPER [--json] [--pictures FOLDER]

accelerators  one-sided factorisations on several accelerators (Dongarra et al.)
calu          LU whose updates a host shares with its GPU (Donfack et al.)
hdgemm        products on a Radeon HD 5970 and two CPUs; --pictures draws its strategies' timelines
linpack       LINPACK on a cluster of nodes with four GPUs (Jo et al.)
native        factorisations on a GPU alone (Abdelfattah et al.)

Each takes at most half a minute.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.papers import accelerators, calu, hdgemm, linpack, native
from hdgemm.pictures.gantt import save_gantt

if TYPE_CHECKING:
    from collections.abc import Sequence

PAPERS: Final = {
    "accelerators": accelerators.compare,
    "calu": calu.compare,
    "hdgemm": hdgemm.compare,
    "linpack": linpack.compare,
    "native": native.compare,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one paper's figures; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--json", action="store_true", help="print JSON; speeds are in GFLOP/s")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw the timelines, too")
    chosen = parser.parse_args(arguments)
    if chosen.pictures is not None and chosen.paper != "hdgemm":
        parser.error("--pictures goes with hdgemm only")
    found = PAPERS[chosen.paper]()
    print(json.dumps(found.to_dict(), indent=2) if chosen.json else found.text())
    if chosen.pictures is not None:
        _draw(chosen.pictures)
    return 0


def _draw(folder: Path) -> None:
    """Draw the timeline of each strategy on one chip."""
    folder.mkdir(parents=True, exist_ok=True)
    for strategy, run in hdgemm.climb().items():
        title = f"{strategy}: {run.timeline.seconds:.3g} s"
        save_gantt(run.timeline, folder / f"timeline-{strategy}.png", title=title)


if __name__ == "__main__":
    raise SystemExit(main())
