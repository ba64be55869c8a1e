"""Files that another file replaces, by its name, while they are overwritten by their factors."""

import os

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from tests.linalg.matrices import positive_definite

N = 40
SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="30MB")
CALLS = {
    "cholesky": lambda a, how: linalg.cholesky(a, overwrite_a=True, **how),
    "lu_factor": lambda a, how: linalg.lu_factor(a, overwrite_a=True, **how),
    "durable": lambda a, how: linalg.lu_factor(a, overwrite_a=True, checkpoint=True, **how),
    "qr": lambda a, how: linalg.qr(a, mode="raw", overwrite_a=True, **how),
    "solve": lambda a, how: linalg.solve(a, np.ones(N), overwrite_a=True, **how),
    "solve pos": lambda a, how: linalg.solve(
        a, np.ones(N), assume_a="pos", overwrite_a=True, **how
    ),
    "view": lambda a, how: linalg.lu_factor(hdgemm.open(a), out=hdgemm.open(a, "r+"), **how),
}  # fmt: skip


def identity(path):
    status = path.stat()
    return status.st_dev, status.st_ino


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kept", [True, False])
def test_a_replaced_file_is_an_error(tmp_path, call, kept):
    place, other = tmp_path / "A.npy", tmp_path / "other.npy"
    a = np.asfortranarray(positive_definite(N, "float64"))
    np.save(place, a)
    np.save(other, np.eye(N))
    if kept:
        os.link(place, tmp_path / "kept.npy")
    opened, new = identity(place), identity(other)

    def replace(event):
        if event.stage == "store2" and other.exists():
            other.replace(place)

    with pytest.raises(
        hdgemm.MatrixIOError, match=r"A\.npy was replaced by another file"
    ) as caught:
        CALLS[call](place, {"options": SLABS, "observer": replace})
    error = caught.value
    assert (error.opened, error.found) == (opened, new)
    assert str(opened) in str(error)
    assert str(new) in str(error)
    assert f"has {'1' if kept else 'no'} other name" in str(error)
    np.testing.assert_array_equal(np.load(place), np.eye(N))
    if kept:
        assert not np.array_equal(np.load(tmp_path / "kept.npy"), a)
    assert not list(tmp_path.glob("*.json"))


def test_a_file_that_is_removed_is_an_error(tmp_path):
    place = tmp_path / "A.npy"
    np.save(place, positive_definite(N, "float64"))

    def remove(event):
        if event.stage == "store2":
            place.unlink(missing_ok=True)

    with pytest.raises(hdgemm.MatrixIOError, match=r"A\.npy is gone during the run"):
        linalg.cholesky(place, overwrite_a=True, options=SLABS, observer=remove)
    assert list(tmp_path.iterdir()) == []
