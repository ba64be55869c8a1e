"""Paths: relative ones and changes of the working directory, kinds of files, odd names."""

import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

import hdgemm
from hdgemm.errors import HdgemmError, InputError, MatrixIOError
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.stores import create_matrix

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

TILED = hdgemm.Options(host_memory="64MB", devices="host", tile=(16, 16, 16))
OUTPUTS = ("c.npy", "c.bin::40x20:f8", "c.h5::C", "c.zarr", "d.zarr::C")


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """A working directory with A and B in every format; returns their relative locations."""
    monkeypatch.chdir(tmp_path)
    a, b = numbers((40, 30)), numbers((30, 20), 1)
    found = {}
    for name, x in (("A", a), ("B", b)):
        rows, cols = x.shape
        np.save(f"{name}.npy", x)
        x.tofile(f"{name}.bin")
        with h5py.File("x.h5", "a") as file:
            file[name] = x
            file.create_dataset(f"gz{name}", data=x, chunks=(7, 9), compression="gzip")
        for suffix, compressors in (("plain", None), ("zstd", "auto")):
            zarr.create_array(
                store="x.zarr", name=f"{name}-{suffix}", data=x, chunks=(7, 9),
                compressors=compressors,
            )  # fmt: skip
        found[name] = [
            f"{name}.npy", f"{name}.bin::{rows}x{cols}:f8", f"x.h5::{name}", f"x.h5::gz{name}",
            f"x.zarr::{name}-plain", f"x.zarr::{name}-zstd",
        ]  # fmt: skip
    return a, b, list(zip(found["A"], found["B"], strict=True))


def chdir_at_first_event(folder):
    """Return a progress callback that changes the working directory in the middle of a run."""
    return lambda _: os.chdir(folder)


def test_a_change_of_directory_during_a_run(inputs, tmp_path, monkeypatch):
    a, b, pairs = inputs
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, (left, right) in enumerate(pairs):
        out = OUTPUTS[number % len(OUTPUTS)]
        monkeypatch.chdir(tmp_path)
        c = hdgemm.matmul(
            left, right, out=out, options=TILED, observer=chdir_at_first_event(elsewhere)
        )
        np.testing.assert_allclose(np.asarray(c), a @ b, atol=1e-12)
        monkeypatch.chdir(tmp_path)
        np.testing.assert_allclose(np.asarray(hdgemm.open(out)), a @ b, atol=1e-12)
    assert not list(elsewhere.iterdir())


def test_a_change_of_directory_between_calls(inputs, tmp_path, monkeypatch):
    a, b, pairs = inputs
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    objects = [
        [zarr.open_array(store="x.zarr", path=f"{name}-{kind}", mode="r") for name in "AB"]
        for kind in ("plain", "zstd")
    ]
    objects += [(hdgemm.open(left), hdgemm.open(right)) for left, right in pairs]
    file = h5py.File("x.h5", "r")
    objects += [(file["A"], file["B"]), (file["gzA"], file["gzB"])]
    opened = [(hdgemm.open(left), hdgemm.open(right)) for left, right in objects[:2]]
    draft = create_matrix("late.npy", (40, 20), "f8")
    monkeypatch.chdir(elsewhere)
    for left, right in objects[2:] + opened:
        np.testing.assert_allclose(hdgemm.matmul(left, right, options=TILED), a @ b, atol=1e-12)
    with draft:
        draft.publish()
    assert (tmp_path / "late.npy").exists()
    assert not list(elsewhere.iterdir())
    file.close()


def test_a_zarr_object_that_cannot_be_found_any_more(inputs, tmp_path, monkeypatch):
    a = inputs[0]
    array = zarr.open_array(store="x.zarr", path="A-plain", mode="r")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="there is no Zarr store"):
        hdgemm.matmul(array, a.T, options=TILED)


def test_a_zarr_store_that_is_removed_is_no_matrix_of_zeros(inputs, tmp_path):
    left = hdgemm.open("x.zarr::A-plain")
    (tmp_path / "x.zarr").rename(tmp_path / "y.zarr")
    with pytest.raises(MatrixIOError, match="is missing"):
        np.asarray(left)


def test_a_checkpoint_and_a_change_of_directory(inputs, tmp_path, monkeypatch):
    a, b, _ = inputs
    (tmp_path / "elsewhere").mkdir()

    def stop(event):
        if event.stage == "store2":
            os.chdir(tmp_path / "elsewhere")
            raise RuntimeError("stop")

    for checkpoint in (True, "mine.journal"):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(RuntimeError, match="stop"):
            hdgemm.matmul(
                "A.npy", "B.npy", out="c.npy", options=TILED, checkpoint=checkpoint, observer=stop
            )
        monkeypatch.chdir(tmp_path)
        report = hdgemm.multiply(
            "A.npy", "B.npy", out="c.npy", options=TILED, checkpoint=checkpoint
        )
        assert report.resumption.kept
        np.testing.assert_allclose(np.load("c.npy"), a @ b, atol=1e-12)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_locations_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_location("../x/./A.npy").path == tmp_path.parent / "x/A.npy"
    assert Location(tmp_path / "A.npy") == parse_location("A.npy")
    assert parse_location(os.fsencode(tmp_path / "A.npy")).path == tmp_path / "A.npy"


def special_files(folder):
    """Make a FIFO, a socket, a link to a device and a directory; return paths and their kinds."""
    os.mkfifo(folder / "fifo.npy")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(folder / "socket.npy"))
    (folder / "device.npy").symlink_to("/dev/zero")
    (folder / "folder.npy").mkdir()
    return {"fifo.npy": "FIFO", "socket.npy": "socket", "device.npy": "character device",
            "folder.npy": "directory"}  # fmt: skip


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path):
    for name, kind in special_files(tmp_path).items():
        path = tmp_path / name
        for location in (f"{path}", f"{path}::4x4:f8"):
            with pytest.raises(InputError, match=kind):
                open_operand(location)
        (tmp_path / f"{name}.h5").symlink_to(path)
        with pytest.raises(InputError, match=kind):
            open_operand(f"{path}.h5::A")
        with pytest.raises(InputError, match="not a file"):
            hdgemm.matmul(np.eye(3), np.eye(3), out=path, options=TILED)
    os.mkfifo(tmp_path / "no-suffix")
    with pytest.raises(InputError, match="FIFO"):
        open_operand(tmp_path / "no-suffix")


@pytest.mark.parametrize("version", [2, 3])
def test_a_fifo_in_a_zarr_store_does_not_block(tmp_path, version):
    array = zarr.create_array(store=tmp_path / "x.zarr", shape=(8, 8), dtype="f8", chunks=(4, 4),
                              compressors=None, zarr_format=version)  # fmt: skip
    array[:] = 1
    chunk = tmp_path / "x.zarr" / array.metadata.encode_chunk_key((0, 1))
    chunk.unlink()
    os.mkfifo(chunk)
    with hdgemm.open(tmp_path / "x.zarr") as matrix, pytest.raises(HdgemmError, match="FIFO"):
        np.asarray(matrix)
    metadata = tmp_path / "x.zarr" / {2: ".zarray", 3: "zarr.json"}[version]
    metadata.unlink()
    os.mkfifo(metadata)
    with pytest.raises(InputError, match="FIFO"):
        hdgemm.open(tmp_path / "x.zarr")


@pytest.mark.parametrize("location", OUTPUTS)
def test_names_that_are_not_utf8(tmp_path, location):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    place = f"{folder}/" + os.fsdecode(b"na\xefve") + location
    x, y = numbers((40, 20)), numbers((20, 20), 1)
    with hdgemm.create(place, (40, 20)) as matrix:
        matrix[:] = x
    np.testing.assert_allclose(hdgemm.matmul(place, y, options=TILED), x @ y, atol=1e-12)
    hdgemm.matmul(x, y, out=place, options=TILED)
    assert hdgemm.verify(x, y, place).passed
    if "h5" not in location:
        report = hdgemm.multiply(x, y, out=place, options=TILED, checkpoint=True)
        assert report.resumption is not None
    with pytest.raises(InputError, match="caf"):
        hdgemm.open(f"{folder}/missing.npy")


@pytest.mark.parametrize("name", ["a\0b.npy", "a\0b.h5::A", "a\0b.zarr::A", "a\0b::3x3:f8",
                                  "x" * 300 + ".npy", "x" * 300, "x" * 300 + ".h5::A",
                                  "x" * 300 + ".zarr::A", "x" * 300 + "::3x3:f8"])  # fmt: skip
def test_paths_that_the_system_does_not_take(tmp_path, name):
    with pytest.raises(InputError):
        open_operand(f"{tmp_path}/{name}")
    with pytest.raises(InputError):
        hdgemm.matmul(np.eye(3), np.eye(3), out=f"{tmp_path}/{name}", options=TILED)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("item", ["", "::A", "::3x3:f8"])
@pytest.mark.parametrize("suffix", [".npy", ".h5", ".zarr", ""])
def test_links_that_lead_nowhere_and_files_in_the_place_of_folders(tmp_path, suffix, item):
    (tmp_path / f"loop{suffix}").symlink_to(tmp_path / f"loop{suffix}")
    (tmp_path / f"dangling{suffix}").symlink_to(tmp_path / "missing" / f"x{suffix}")
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    for name in ("loop", "dangling", "file/x", "missing/x"):
        location = f"{tmp_path}/{name}{suffix}{item}"
        with pytest.raises(InputError):
            hdgemm.open(location)
        with pytest.raises(InputError):
            hdgemm.create(location, (3, 3))
        with pytest.raises(InputError):
            hdgemm.matmul(np.eye(3), np.eye(3), out=location, options=TILED)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("item", ["..", "../A", "A/./B", "."])
@pytest.mark.parametrize("store", ["x.h5", "x.zarr"])
def test_items_are_named_from_the_top(tmp_path, store, item):
    with pytest.raises(InputError, match="from the top"):
        hdgemm.create(f"{tmp_path}/{store}::{item}", (3, 3))
    assert not list(tmp_path.iterdir())


def test_a_raw_file_longer_than_offsets_can_address(tmp_path):
    with pytest.raises(MatrixIOError, match="cannot reserve"):
        hdgemm.create(f"{tmp_path}/x::3x3:f8:F:{1 << 70}", (3, 3), order="F")
    assert not list(tmp_path.iterdir())


def test_threads_that_open_special_files_end(tmp_path):
    special_files(tmp_path)
    failed = []

    def attempt(name):
        try:
            hdgemm.open(tmp_path / name)
        except InputError:
            failed.append(name)

    threads = [threading.Thread(target=attempt, args=("fifo.npy",), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert len(failed) == 8


@pytest.mark.parametrize("inside", ["C.npy", "A/C.npy", "A/0/C.bin::30x30:f8"])
def test_no_output_lies_among_the_files_of_a_store(tmp_path, inside):
    hdgemm.create(f"{tmp_path}/x.zarr::A", (30, 30), "float64").close()
    with pytest.raises(InputError, match=r"among the files of the store .*x\.zarr"):
        hdgemm.matmul(numbers((30, 30)), numbers((30, 30)), out=f"{tmp_path}/x.zarr/{inside}")
