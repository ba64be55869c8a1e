"""`--cluster` without a cluster: what it refuses, and the map of C on a terminal."""

import io

import pytest
from rich.console import Console

from hdgemm.cli.cluster import BlockMap, LiveMap, show_cluster_progress
from hdgemm.cluster.connection import open_cluster
from hdgemm.cluster.report import ClusterProgress
from hdgemm.errors import InputError
from hdgemm.pipeline.plan import Rect


@pytest.mark.parametrize("where", ["local:0", "local:x", "local:9999", "nowhere.json", "host:8786"])
def test_what_names_no_scheduler_is_refused(where):
    with pytest.raises(InputError, match=f"--cluster {where}: give"), open_cluster(where):
        pass


def test_the_map_shows_each_block_in_its_workers_letter():
    drawn = BlockMap((1000, 3000))
    assert drawn.text().plain.count("·") == 16 * 48
    drawn.add("first", Rect(0, 0, 500, 3000))
    drawn.add("second", Rect(500, 0, 500, 1500))
    drawn.add("second", Rect(999, 2999, 1, 1))
    text = drawn.text().plain
    rows = text.splitlines()
    assert rows[0] == "  " + "A" * 48
    assert rows[8] == "  " + "B" * 24 + "·" * 24
    assert rows[15].endswith("·B")
    assert "A first 50.0 %" in text
    assert "B second 25.0 %" in text


def test_the_live_view_needs_a_terminal():
    snapshot = ClusterProgress(
        percent=50.0, gflops=1.0, elapsed=1.0, eta=1.0, limit=None, steps=1, total_steps=2,
        shape=(10, 10), workers=("a",), blocks=(("a", Rect(0, 0, 5, 10)),),
    )  # fmt: skip
    for terminal in (True, False):
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=100, height=40,
                          _environ={"TERM": "xterm"})  # fmt: skip
        with show_cluster_progress("C.npy", console) as view:
            view(snapshot)
        assert isinstance(view, LiveMap) == terminal
        assert "C.npy  50.0 %" in out.getvalue()
        assert ("1 workers, 1 blocks" in out.getvalue()) == terminal
