"""Runs that are killed while a Zarr array is replaced: a complete array is always found again."""

import errno
import os
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr

import hdgemm
from hdgemm.matrices import zarr_replacement
from hdgemm.matrices.stores import create_matrix
from tests.durable.durable_case import killed

N = 40
PLACES = {"array": "C.zarr", "item": "C.zarr::group/C", "other suffix": "C"}
OPTIONS = hdgemm.Options(tile=(16, 16, 16), devices="host")


def update(folder, place, *, durable, restart=False):
    """C := A·B + C, where C is read and replaced."""
    out = f"{folder}/{PLACES[place]}"
    return hdgemm.multiply(
        folder / "A.npy", folder / "A.npy", beta=1.0, c=out, out=out, options=OPTIONS,
        checkpoint=durable, restart=restart,
    )  # fmt: skip


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def not_offered(*_):
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


#: Moments of a kill where names are exchanged, and where there are two renames.
EXCHANGED = ("before the exchange", "after the exchange")
RENAMED = ("between", "before the removal")


def killed_call(folder, place, durable, moment):
    """Do a call that is killed around the exchange of names, or the renames in its place."""
    rename, replace = zarr_replacement._rename, Path.replace

    def exchange(*arguments):
        if moment == "after the exchange":
            rename(*arguments)
        die()

    def between(self, target):
        if self.name.endswith(".part") and zarr_replacement.old_name(self).exists():
            die()
        return replace(self, target)

    zarr_replacement._rename = exchange if moment in EXCHANGED else not_offered
    if moment == "between":
        Path.replace = between
    elif moment == "before the removal":
        zarr_replacement._consolidate = die
    update(folder, place, durable=durable)


def leftovers(folder):
    return [
        path.name for path in folder.rglob("*") if path.suffix in (".old", ".part", ".exchange")
    ]


def read(folder, place):
    return np.array(hdgemm.open(f"{folder}/{PLACES[place]}"))


@pytest.fixture
def folder(tmp_path):
    a = np.random.default_rng(0).standard_normal((N, N)) + 9 * np.eye(N)
    np.save(tmp_path / "A.npy", a)
    return tmp_path


def store(folder, place):
    a = np.load(folder / "A.npy")
    if place == "other suffix":
        zarr.create_array(folder / PLACES[place], data=a, chunks=a.shape, compressors=None)
        return
    with hdgemm.create(f"{folder}/{PLACES[place]}", (N, N)) as c:
        c.write(a)


def result(folder, place):
    """Return the result of a call that is not killed, and remove it."""
    store(folder, place)
    update(folder, place, durable=False)
    found = read(folder, place)
    shutil.rmtree(folder / PLACES[place].partition("::")[0])
    return found


@pytest.mark.parametrize("moment", RENAMED)
@pytest.mark.parametrize("place", ["array", "item"])
def test_a_killed_replacement_is_finished_when_the_array_is_opened(folder, place, moment):
    expected = result(folder, place)
    for durable in (False, True):
        store(folder, place)
        killed(killed_call, folder, place, durable, moment)
        suffixes = {".old", ".part"} if moment == "between" else {".old"}
        assert {Path(name).suffix for name in leftovers(folder)} == suffixes
        if durable:
            # The same command finds its result, and does not apply itself to it.
            update(folder, place, durable=True)
            assert leftovers(folder) == []
        np.testing.assert_array_equal(read(folder, place), expected)
        assert moment != "between" or leftovers(folder) == []
        hdgemm.create(f"{folder}/{PLACES[place]}", (3, 3)).close()
        assert leftovers(folder) == []
        shutil.rmtree(folder / "C.zarr")


@pytest.mark.parametrize("moment", EXCHANGED)
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("place", list(PLACES))
def test_an_array_has_its_name_after_any_kill(folder, place, durable, moment):
    expected = result(folder, place)
    store(folder, place)
    killed(killed_call, folder, place, durable, moment)
    path = folder / PLACES[place].replace("::", "/")
    found = np.array(zarr.open_array(path, mode="r"))
    old = np.load(folder / "A.npy")
    np.testing.assert_array_equal(found, expected if moment == "after the exchange" else old)
    if durable:
        update(folder, place, durable=True)
        assert leftovers(folder) == []
        np.testing.assert_array_equal(read(folder, place), expected)
    hdgemm.create(f"{folder}/{PLACES[place]}", (3, 3)).close()
    # Without a journal, no run knows the draft of one that was killed before.
    assert durable or moment == "before the exchange" or leftovers(folder) == []


@pytest.mark.parametrize("moment", EXCHANGED)
def test_a_run_begun_again_keeps_to_its_own_draft(folder, moment):
    store(folder, "array")
    killed(killed_call, folder, "array", True, moment)
    update(folder, "array", durable=True, restart=True)
    assert leftovers(folder) == []
    a = np.load(folder / "A.npy")
    old = a @ a + a if moment == "after the exchange" else a
    np.testing.assert_allclose(read(folder, "array"), a @ a + old, rtol=1e-12)


def test_a_killed_run_does_not_go_on_where_another_has_stored_its_result(folder):
    store(folder, "array")
    expected = np.full((N, N), 2.0)
    with create_matrix(folder / "C.zarr", (N, N), "f8") as other:
        other.matrix.write(0, 0, expected)
        killed(killed_call, folder, "array", True, "after the exchange")
        other.publish()
    with pytest.raises(hdgemm.errors.InputError, match="was published, and has changed since"):
        update(folder, "array", durable=True)
    np.testing.assert_array_equal(read(folder, "array"), expected)
    assert leftovers(folder) == []


@pytest.mark.parametrize("place", ["array", "other suffix"])
def test_a_store_is_found_by_the_call_after_the_kill(folder, place):
    expected = result(folder, place)
    store(folder, place)
    killed(killed_call, folder, place, False, "between")
    assert not (folder / PLACES[place]).exists()
    np.testing.assert_array_equal(read(folder, place), expected)


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


def consolidated(folder):
    """Make the store's metadata consolidated, with a file in the group that is no node."""
    (folder / "C.zarr" / "group" / "README.txt").write_text("A file of the caller's.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's, of consolidated metadata in format 3
        zarr.consolidate_metadata(folder / "C.zarr")


def consolidated_shapes(folder):
    group = zarr.open_consolidated(folder / "C.zarr")["group"]
    return {name: array.shape for name, array in group.members()}


@pytest.mark.parametrize("exchange", [True, False])
def test_consolidated_metadata_names_no_replaced_array(folder, monkeypatch, exchange):
    expected = result(folder, "item")
    store(folder, "item")
    consolidated(folder)
    if not exchange:
        monkeypatch.setattr(zarr_replacement, "_rename", not_offered)
    update(folder, "item", durable=False)
    np.testing.assert_array_equal(read(folder, "item"), expected)
    assert consolidated_shapes(folder) == {"C": (N, N)}
