"""Runs that are killed while a Zarr array is replaced: a complete array is always found again."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import zarr

import hdgemm
from hdgemm.linalg import inv
from hdgemm.matrices import zarr_replacement
from tests.durable.durable_case import killed

N = 40
PLACES = {"array": "C.zarr", "item": "C.zarr::group/C"}
OPTIONS = hdgemm.Options(tile=(16, 16, 16), devices="host")


def update(folder, place, *, durable):
    """C := A·B + C, where C is read and replaced."""
    out = f"{folder}/{PLACES[place]}"
    return hdgemm.multiply(
        folder / "A.npy", folder / "A.npy", beta=1.0, c=out, out=out, options=OPTIONS,
        checkpoint=durable,
    )  # fmt: skip


def invert(folder, place, *, durable):
    """A := A^-1."""
    out = f"{folder}/{PLACES[place]}"
    return inv(out, out=out, options=hdgemm.Options(host_memory="20MB"), checkpoint=durable)


CALLS = {"update": update, "invert": invert}


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_call(folder, call, place, durable, moment):
    """Do a call that is killed between the renames, or before the old array is removed."""
    replace = Path.replace

    def between(self, target):
        if self.name.endswith(".part") and zarr_replacement.old_name(self).exists():
            die()
        return replace(self, target)

    if moment == "between":
        Path.replace = between
    else:
        zarr_replacement._consolidate = die
    CALLS[call](folder, place, durable=durable)


def leftovers(folder):
    return [path.name for path in folder.rglob("*") if path.suffix in (".old", ".part")]


def read(folder, place):
    return np.array(hdgemm.open(f"{folder}/{PLACES[place]}"))


@pytest.fixture
def folder(tmp_path):
    a = np.random.default_rng(0).standard_normal((N, N)) + 9 * np.eye(N)
    np.save(tmp_path / "A.npy", a)
    return tmp_path


def store(folder, place):
    with hdgemm.create(f"{folder}/{PLACES[place]}", (N, N)) as c:
        c.write(np.load(folder / "A.npy"))


@pytest.mark.parametrize("moment", ["between", "before the removal"])
@pytest.mark.parametrize(("call", "place"), [("update", "array"), ("invert", "item")])
def test_a_killed_replacement_is_finished_when_the_array_is_opened(folder, call, place, moment):
    store(folder, place)
    CALLS[call](folder, place, durable=False)
    expected = read(folder, place)
    shutil.rmtree(folder / "C.zarr")
    for durable in (False, True):
        store(folder, place)
        killed(killed_call, folder, call, place, durable, moment)
        suffixes = {".old", ".part"} if moment == "between" else {".old"}
        assert {Path(name).suffix for name in leftovers(folder)} == suffixes
        if durable:
            # The same command finds its result, and does not apply itself to it.
            CALLS[call](folder, place, durable=True)
            assert leftovers(folder) == []
        np.testing.assert_array_equal(read(folder, place), expected)
        assert moment != "between" or leftovers(folder) == []
        hdgemm.create(f"{folder}/{PLACES[place]}", (3, 3)).close()
        assert leftovers(folder) == []
        shutil.rmtree(folder / "C.zarr")


def test_the_only_copy_gets_its_name_back(folder):
    store(folder, "item")
    array = folder / "C.zarr" / "group" / "C"
    array.replace(array.with_name(".C.0123abcd.old"))
    other = array.with_name(".C.x.0123abcd.old")  # of an array of another name
    other.mkdir()
    np.testing.assert_array_equal(read(folder, "item"), np.load(folder / "A.npy"))
    assert leftovers(folder) == [other.name]


def test_an_array_that_has_the_name_is_not_touched(folder):
    store(folder, "array")
    shutil.copytree(folder / "C.zarr", folder / ".C.zarr.0123abcd.old")
    shutil.copytree(folder / "C.zarr", folder / ".C.zarr.0123abcd.part")
    zarr.open_array(folder / "C.zarr", mode="r+")[0, 0] = 5.0
    assert read(folder, "array")[0, 0] == 5.0
    hdgemm.create(folder / "C.zarr", (2, 2)).close()
    assert read(folder, "array").shape == (2, 2)
    assert len(leftovers(folder)) == 2  # one of them may be the draft of a durable run
