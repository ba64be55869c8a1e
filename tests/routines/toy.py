"""A routine that is no part of hdgemm: two matrices, two stored results and two values."""

from contextlib import contextmanager

import numpy as np

import hdgemm
from hdgemm.call.keywords import Call, ReportKeywords, public_call
from hdgemm.call.operands import open_matrix
from hdgemm.call.plans import JointPlan, facts_of
from hdgemm.call.prepared import Prepared
from hdgemm.call.recorder import Recorder
from hdgemm.call.run import open_run


@public_call(ReportKeywords)
def shift(a, w, scale=1.0, *, shifts=(), side="left", out=None, **keywords):
    """Store the scaled sum of A and W, and where a place is given the difference."""
    given = {"scale": scale, "shifts": shifts, "side": side}
    with prepare(a, w, out, Call.of(**keywords), **given) as prepared:
        return prepared.run()


@contextmanager
def prepare(a, w, out, call, *, scale=1.0, shifts=(), side="left"):
    with open_matrix(a) as one, open_matrix(w) as other, open_run(call) as run:
        plan = JointPlan(facts_of("shift", one.shape, one.dtype.name, run.options), ())

        def compute():
            recorder = Recorder(run.callbacks, 1)
            x, y = np.asarray(one), np.asarray(other)
            found = scale * (x + y) + sum(shifts), x - y
            for place, matrix in zip(out, found, strict=True):
                if place is not None:
                    with hdgemm.create(place, matrix.shape, dtype=matrix.dtype) as stored:
                        stored[:, :] = matrix
            with recorder.operation("mult1", 0, flops=1):
                pass
            recorder.finish(plan)
            return {"largest": x.max(), "heads": y[0] if side == "left" else y[-1]}

        yield Prepared(plan, compute, run.session)
