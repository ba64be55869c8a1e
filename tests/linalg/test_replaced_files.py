"""Files that change during a call: replaced while they are overwritten, or modified while read."""

import os
from contextlib import suppress

import numpy as np
import pytest

import hdgemm
from hdgemm import linalg
from tests.counting import nth_call
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
}


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
        if event.stage == "store2":
            with suppress(FileNotFoundError):  # two stores may end at once
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


def stored_inputs(folder):
    """Store a triangle T, factors F, a matrix A, a tall one and right-hand sides."""
    a = np.asfortranarray(positive_definite(N, "float64"))
    for name, x in {"A": a, "T": np.triu(a), "B": a[::-1], "R": np.tile(a, (3, 1))}.items():
        np.save(folder / f"{name}.npy", x)
    np.save(folder / "b.npy", np.tile(a, (3, 1))[:, :2])
    linalg.lu_factor(a, out=folder / "F.npy")


READS = {
    ("T", "A"): lambda f, how: linalg.solve_triangular(f("T"), f("B"), out=f("X"), **how),
    ("B", "B"): lambda f, how: linalg.solve_triangular(f("T"), f("B"), out=f("X"), **how),
    ("F", "A"): lambda f, how: linalg.lu_solve(linalg.open(f("F")), f("B"), out=f("X"), **how),
    ("A", "A"): lambda f, how: linalg.solve(f("A"), f("B"), refine="float32", out=f("X"), **how),
    ("b", "b"): lambda f, how: linalg.lstsq(f("R"), f("b"), **how),
}


@pytest.mark.parametrize(("file", "name"), READS)
def test_an_operand_of_a_solution_that_changes_is_an_error(tmp_path, file, name):
    stored_inputs(tmp_path)
    changed, first, done = tmp_path / f"{file}.npy", nth_call(1), []
    content = changed.read_bytes()
    # The first slab of a factorisation has one step, a group of columns has several.
    wanted = ("mult1", 0, 0 if file == "b" else 2)

    def modify(event):
        if (event.stage, event.unit, event.step) == wanted and first():
            done.append(event)
            with changed.open("r+b") as found:  # never truncated: a read ahead would find its end
                found.write(content)

    with pytest.raises(hdgemm.MatrixIOError, match=rf"{name} \(.*{file}\.npy\) was modified"):
        READS[file, name](
            lambda each: tmp_path / f"{each}.npy", {"options": SLABS, "observer": modify}
        )
    assert done
    assert not (tmp_path / "X.npy").exists()
