"""A worker's part of a block: the tiles of its plan, and when C becomes durable."""

from dataclasses import dataclass, field

import numpy as np

from hdgemm.cluster.job import WorkerSession
from hdgemm.cluster.recorder import Recorder
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.options import Options
from hdgemm.pipeline.plan import Rect


@dataclass
class Planned:
    """The part of a report that a session reads."""

    plan: dict = field(default_factory=dict)
    split: object = None


def test_blocks_take_the_tile_of_a_higher_one_of_their_width():
    with WorkerSession(Options(host_memory="64MB")) as session:
        session.remember_tile(Rect(0, 0, 300, 80), Planned({"tile": [100, 80, 20]}))
        session.remember_tile(Rect(0, 0, 200, 80), Planned({"tile": [50, 80, 40]}))
        session.remember_tile(Rect(0, 0, 300, 90), Planned({"tile": [1, 1, 1]}, split=object()))
        tiles = {
            (rows, cols): session.options_for(Rect(5, 5, rows, cols)).tile
            for rows, cols in ((300, 80), (10, 80), (301, 80), (10, 90))
        }
        assert tiles == {
            (300, 80): (100, 80, 20), (10, 80): (100, 80, 20), (301, 80): None, (10, 90): None,
        }  # fmt: skip
        session.disk_share = 1e9
        assert session.options_for(Rect(0, 0, 10, 80)).tile is None


def test_a_block_becomes_durable_after_its_run():
    flushed = []
    c = ArrayMatrix(np.zeros((4, 4)))
    c.flush = lambda: flushed.append(True)
    recorder = Recorder(c)
    recorder.part(0, 0, (2, 4)).flush()
    assert not flushed
    recorder.sync()
    assert flushed
