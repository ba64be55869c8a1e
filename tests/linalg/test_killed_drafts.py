"""Drafts of results in stores that a killed durable run leaves: the one that goes on takes them."""

import os
import signal

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from hdgemm.matrices import draft
from tests.durable.durable_case import killed

ENDING = {"hdf5": ".h5::/group/X", "zarr": ".zarr", "item": ".zarr::group/X"}
CALLS = {
    "lstsq": lambda a, x, y, **how: linalg.lstsq(a, np.ones(80), out=x, **how),
    "cov": lambda a, x, y, **how: linalg.cov(a, rowvar=False, out=x, **how),
    "svdvals": lambda a, x, y, **how: linalg.svdvals(a, out=x, **how),
    "svd": lambda a, x, y, **how: linalg.svd(a, out=(x, None, y), **how),
    "lu": lambda a, x, y, **how: linalg.lu(a, p_indices=True, out=(x, y), **how),
    "qr": lambda a, x, y, **how: linalg.qr(a, mode="economic", out=(x, y), **how),
    "qr, r": lambda a, x, y, **how: linalg.qr(a, mode="r", out=x, **how),
}


def run(folder, name, kind):
    places = (f"{folder}/{result}{ENDING[kind]}" for result in "XY")
    options = hdgemm.Options(tile=(10, 4, 4), devices="host", threads=1)
    CALLS[name](folder / "A.npy", *places, checkpoint=True, options=options)


def _killed_before_a_result_has_its_name(folder, name, kind):
    def publish(self):
        if ".work" not in self.path.name:
            os.kill(os.getpid(), signal.SIGKILL)
        named(self)  # factors on the way

    named, draft.Draft.publish = draft.Draft.publish, publish
    run(folder, name, kind)


def hidden(folder):
    return sorted(path.name for path in folder.rglob(".*") if path.suffix == ".part")


@pytest.mark.parametrize("kind", ENDING)
@pytest.mark.parametrize("name", CALLS)
def test_the_draft_of_a_killed_run_is_made_again_under_its_name(tmp_path, name, kind):
    np.save(tmp_path / "A.npy", np.random.default_rng(0).standard_normal((80, 10)))
    left = []
    for _ in range(2):
        killed(_killed_before_a_result_has_its_name, tmp_path, name, kind)
        left.append(hidden(tmp_path))
    assert left[0] == left[1] != []
    run(tmp_path, name, kind)
    assert not hidden(tmp_path)
