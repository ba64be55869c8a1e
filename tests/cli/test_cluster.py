"""`--cluster` without a cluster: what it refuses, and the map of C on a terminal."""

import io

import pytest
from rich.console import Console

from hdgemm.cli.cluster import LiveMap, show_cluster_progress
from hdgemm.cluster.connection import open_cluster
from hdgemm.errors import InputError
from hdgemm.pipeline.tiles import Rect
from hdgemm.progress import Progress, TileGrid
from hdgemm.run.regions import Cells


@pytest.mark.parametrize("where", ["local:0", "local:x", "local:9999", "nowhere.json", "host:8786"])
def test_what_names_no_scheduler_is_refused(where):
    with pytest.raises(InputError, match=f"--cluster {where}: give"), open_cluster(where):
        pass


def test_the_live_map_shows_each_cell_in_its_workers_letter():
    cells = Cells(1000, 3000, most=(16, 48))
    assert set("".join(cells.grid([]).rows)) == {"."}
    cells.mark(0, Rect(0, 0, 500, 3000))
    cells.mark(1, Rect(500, 0, 500, 1500))
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40, color_system=None,
                      _environ={"TERM": "xterm"})  # fmt: skip
    with show_cluster_progress("C.npy", console) as view:
        view(snapshot_of(cells.grid(["first", "second"])))
    rows = [line.strip() for line in out.getvalue().splitlines()]
    assert rows.count("A" * 48) % 8 == 0
    assert rows.count("B" * 24 + "·" * 24) == rows.count("A" * 48) > 0
    assert any("A first 50.0 %" in row and "B second 25.0 %" in row for row in rows)


def snapshot_of(tiles):
    return Progress(
        percent=50.0, gflops=1.0, elapsed=1.0, eta=1.0, limit=None, steps=1, total_steps=2,
        tiles=tiles,
    )  # fmt: skip


def test_the_live_view_needs_a_terminal():
    snapshot = snapshot_of(TileGrid(("worker",), ("a.",)))
    for terminal in (True, False):
        out = io.StringIO()
        console = Console(
            file=out, force_terminal=terminal, width=100, height=40, _environ={"TERM": "xterm"}
        )
        with show_cluster_progress("C.npy", console) as view:
            view(snapshot)
        assert isinstance(view, LiveMap) == terminal
        assert "C.npy  50.0 %" in out.getvalue()
        assert ("1 worker, 1 block" in out.getvalue()) == terminal
