"""Every plan says the same things by the same names, in Python, in JSON and in text."""

import json

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from hdgemm.cluster._cluster_plan import plan_cluster
from hdgemm.cluster.blocks import Costs
from hdgemm.cluster.virtual_time import VirtualWorker
from hdgemm.pipeline.plans import Plans
from hdgemm.routines.registry import planned

OPTIONS = hdgemm.Options(devices="host", host_memory="30MB")
NAMES = (
    "host_bytes", "host_limit", "planned_bytes", "flops", "expected_seconds",
    "expected_phase_seconds", "expected_limit",
)  # fmt: skip


def of_routine(name):
    routine = planned()[name]
    given = {"columns": 20} if len(routine.operands) > 1 else {}
    return linalg.plan(name, (200, 200), options=OPTIONS, **given, **routine.defaults)


def of_files(tmp_path):
    np.save(tmp_path / "A.npy", np.ones((20, 30)))
    np.save(tmp_path / "B.npy", np.ones((30, 10)))
    return hdgemm.plan(
        tmp_path / "A.npy", tmp_path / "B.npy", out=tmp_path / "C.npy", options=OPTIONS
    )


PLANS = {
    "plan": of_files,
    "plan_gemm": lambda _: hdgemm.plan_gemm(300, 200, 100, options=OPTIONS),
    "mpi": lambda _: hdgemm.mpi.plan("lu", 4000, ranks=4, rate=1e10),
    "cluster": lambda _: plan_cluster(
        (900, 800, 700), "float64", [VirtualWorker("a", 1e10), VirtualWorker("b", 1e10)],
        costs=Costs(k=700), bandwidth=1e9, memory=10**9, itemsize=8, flops_per_element=1400,
    ),
    **{f"linalg {name}": lambda _, name=name: of_routine(name) for name in planned()},
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_says_the_same_things(tmp_path, name):
    plan = PLANS[name](tmp_path)
    told = json.loads(json.dumps(plan.to_dict()))
    for term in NAMES:
        assert told[term] == getattr(plan, term), term
    moved = plan.planned_bytes
    assert (told["read_bytes"], told["write_bytes"]) == (
        moved.get("load1", 0),
        moved.get("store2", 0),
    )
    # plan_gemm takes arrays in memory, which one BLAS call multiplies in place.
    assert (0 if name == "plan_gemm" else 1) <= plan.host_bytes <= plan.host_limit
    assert plan.flops > 0
    assert plan.expected_seconds > 0
    assert plan.expected_phase_seconds
    assert plan.expected_limit
    text = str(plan)
    assert "expected: " in text
    assert f"limited by {plan.expected_limit}" in text
    assert ("memory held" in text) or name == "cluster"


def test_the_time_of_several_devices_is_not_known():
    alone = hdgemm.plan_gemm(30, 20, 10, options=OPTIONS)
    both = Plans([alone, alone])
    assert both.host_bytes == 2 * alone.host_bytes
    assert both.planned_bytes == alone.planned_bytes
    assert both.expected_seconds is None
    assert both.to_dict()["expected_limit"] is None
    assert len(json.loads(both.to_json())["devices"]) == 2
