"""A worker's part of a block: its plan, and when C becomes durable."""

from contextlib import ExitStack

import numpy as np

import hdgemm
from hdgemm.cluster import _job as job
from hdgemm.cluster._block_writer import BlockWriter
from hdgemm.cluster._marks import BlockTask
from hdgemm.cluster.references import Reference
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.options import Options
from hdgemm.pipeline.tiles import Rect
from hdgemm.progress import Callbacks
from hdgemm.run.session import Session
from tests.reference import assert_close_in_eps


def test_each_block_has_the_plan_of_a_product_of_its_own(tmp_path, monkeypatch):
    """The tile of an earlier block would load A in narrow strips, which takes many requests."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((50, 30)), rng.standard_normal((30, 20))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    options = Options(devices="host", host_memory="64MB")
    planned = []
    compute = job.compute

    def recorded(product, call, *arguments, **named):
        planned.append(call.options or call.session.options)
        return compute(product, call, *arguments, **named)

    monkeypatch.setattr(job, "compute", recorded)
    with (
        hdgemm.open(tmp_path / "A.npy") as left,
        hdgemm.open(tmp_path / "B.npy") as right,
        hdgemm.create(tmp_path / "C.npy", (50, 20)) as c,
        Session(options) as session,
    ):
        references = [Reference.of(each.operand, "matrix") for each in (left, right, c)]
        work = job.Job("run", "topic", *references, None, 1.0, 0.0, a.dtype, a.dtype, options)
        for block in (Rect(0, 0, 34, 20), Rect(34, 0, 16, 20)):
            with ExitStack() as stack:
                process = job.Process(session, Callbacks(), stack, lambda: None)
                receipt, written = work.compute(BlockTask(0, block, 1e9), process)
                written.sync()
            assert receipt.block == block
        assert_close_in_eps(np.asarray(c), a, b)
    assert planned == [options, options]


def test_a_block_becomes_durable_after_its_run():
    flushed = []
    c = ArrayMatrix(np.zeros((4, 4)))
    c.flush = lambda: flushed.append(True)
    writer = BlockWriter(c, lambda: None)
    writer.part(0, 0, (2, 4)).flush()
    assert not flushed
    writer.sync()
    assert flushed
