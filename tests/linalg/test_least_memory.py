"""Too little memory: one raise is enough, and a plan that it makes slow says so."""

import numpy as np
import pytest

import hdgemm
from hdgemm import Options, linalg


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("square.npy", rng.standard_normal((300, 300)))
    np.save("symmetric.npy", np.diag(np.arange(300.0)))
    np.save("tall.npy", rng.standard_normal((5000, 60)))
    np.save("b.npy", rng.standard_normal((300, 5)))
    return tmp_path


CALLS = {
    "solve": lambda how: linalg.plan("solve", "square.npy", columns="b.npy", options=how),
    "inv": lambda how: linalg.plan("inv", "square.npy", options=how),
    "lu": lambda how: linalg.plan("lu", "square.npy", options=how),
    "svds": lambda how: linalg.plan("svds", "tall.npy", options=how),
    "eigsh": lambda how: linalg.plan("eigsh", "symmetric.npy", options=how),
    "pca": lambda how: linalg.plan("pca", "tall.npy", options=how),
    "pinv": lambda how: linalg.plan("pinv", "tall.npy", options=how),
    "lstsq": lambda how: linalg.plan("lstsq", "square.npy", columns="b.npy", options=how),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_memory_that_a_refusal_names_is_enough(folder, caplog, name):
    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        CALLS[name](Options(host_memory="50kB", devices="host"))
    assert not caplog.records  # of plans that were only tried
    memory = caught.value.requested
    plan = CALLS[name](Options(host_memory=memory, devices="host"))
    assert plan.host_bytes <= memory


@pytest.mark.parametrize(
    ("name", "shape", "how", "part"),
    [
        ("lu", (2000, 2000), {"out": "LU.npy"}, "slabs of 1 column"),
        ("svds", (100_000, 2000), {}, "blocks of 1 row"),
    ],
)
def test_a_plan_that_little_memory_makes_slow_says_so(
    tmp_path, monkeypatch, caplog, name, shape, how, part
):
    monkeypatch.chdir(tmp_path)
    np.lib.format.open_memmap("A.npy", "w+", "f8", shape)

    def plan(memory):
        return linalg.plan(
            name, "A.npy", options=Options(host_memory=memory, devices="host"), **how
        )

    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        plan("50kB")
    plan(caught.value.requested)
    [record] = caplog.records
    assert part in record.getMessage()
    assert "with 16 times the memory" in record.getMessage()
    caplog.clear()
    plan("1GB")
    assert not caplog.records


def test_cond_names_the_memory_of_both_parts_to_the_byte(folder):
    def call(memory):
        return linalg.cond("square.npy", options=Options(host_memory=memory, devices="host"))

    def refused(memory):
        with pytest.raises(hdgemm.DoesNotFitError, match="cond of a 300×300") as caught:
            call(memory)
        return caught.value.requested

    named = refused(1_000_000)
    call(named)
    with pytest.raises(hdgemm.DoesNotFitError) as caught:
        call(named - 1)
    assert caught.value.requested == named
