"""Inputs that change during a run."""

import os
import sys
from functools import partial

import h5py
import numpy as np
import pytest
import zarr

import hdgemm
from hdgemm.errors import MatrixIOError
from hdgemm.matrices.fingerprint import file_state, unchanged
from tests.counting import nth_call

TILED = hdgemm.Options(host_memory="64MB", devices="host", tile=(16, 16, 16))


def numbers(shape=(40, 40), seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def inputs(tmp_path):
    x = numbers()
    np.save(tmp_path / "a.npy", x)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("A", data=x, chunks=(8, 8), compression="gzip")
    for name, compressors in (("a", None), ("b", "auto")):
        zarr.create_array(
            store=tmp_path / f"{name}.zarr", data=x, chunks=(8, 8), compressors=compressors
        )
    return tmp_path


def rewrite(path):
    """Write another matrix over the one in a file, element by element."""
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1" * 8)


def replace(path):
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def behind_its_time(act):
    """Do something to a file or folder, and set its times of modification back."""

    def acting(path):
        files = [path, *path.rglob("*")]
        times = [(file, file.stat()) for file in files]
        act(path)
        for file, status in times:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    return acting


def rewrite_chunk(folder):
    for chunk in (path for path in folder.rglob("c/0/*") if path.is_file()):
        # Without cutting it short first: a reader that met an empty file would say that instead.
        with chunk.open("r+b") as file:
            file.write(chunk.read_bytes())


CHANGES = {
    "modified": ("a.npy", "a.npy", rewrite, "was modified"),
    "time set back": ("a.npy", "a.npy", behind_its_time(rewrite), "was modified, and its time"),
    "longer": ("a.npy", "a.npy", lambda path: os.truncate(path, 99_999), "changed its size"),
    "hdf5": ("a.h5::A", "a.h5", os.utime, "was modified"),
    "zarr": ("a.zarr", "a.zarr", rewrite_chunk, "was modified"),
    "zarr, compressed": ("b.zarr", "b.zarr", rewrite_chunk, "was modified"),
    "zarr, time set back": ("b.zarr", "b.zarr", behind_its_time(rewrite_chunk), "its time"),
}


def rename(path):
    path.rename(path.with_name("other.npy"))


def link(path):
    path.with_name("other.npy").hardlink_to(path)


@pytest.mark.parametrize("act", [replace, os.unlink, rename, link, lambda path: path.chmod(0o640)])
def test_a_file_with_other_names_or_modes_is_read_to_the_end(inputs, act):
    x, first = numbers(), nth_call(1)

    def observer(event):
        if event.stage == "mult1" and first():
            act(inputs / "a.npy")

    out = inputs / "c.npy"
    hdgemm.multiply(inputs / "a.npy", x, out=out, options=TILED, observer=observer)
    np.testing.assert_allclose(np.load(out), x @ x, atol=1e-12)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("side", ["A", "B", "C"])
def test_an_input_that_changes_during_the_run(inputs, change, side):
    location, file, act, message = CHANGES[change]
    x = numbers()
    first = nth_call(1)

    def observer(event):
        if event.stage == "mult1" and first():
            act(inputs / file)

    out = inputs / "c.npy"
    operands = {name: f"{inputs}/{location}" if name == side else x for name in "ABC"}
    with pytest.raises(MatrixIOError, match=rf"{side} \(.*{message}") as caught:
        hdgemm.multiply(
            operands["A"], operands["B"], c=operands["C"], beta=1.0, out=out, options=TILED,
            observer=observer,
        )  # fmt: skip
    assert caught.value.path == str(inputs / file)
    assert not out.exists()
    assert not [path for path in inputs.rglob("*") if ".part" in path.name]


def test_a_durable_run_says_so_too(inputs):
    first = nth_call(1)

    def observer(event):
        if event.stage == "mult1" and first():
            rewrite(inputs / "a.npy")

    with pytest.raises(MatrixIOError, match=r"A .*was modified"):
        hdgemm.multiply(inputs / "a.npy", numbers(), out=inputs / "c.npy", options=TILED,
                        checkpoint=True, observer=observer)  # fmt: skip
    assert not (inputs / "c.npy").exists()


def test_inputs_in_the_file_of_c_may_change_by_c(inputs):
    x = numbers()
    with hdgemm.open(inputs / "a.npy", "r+") as m:
        hdgemm.matmul(m[:20], m[:, :20], out=np.empty((20, 20)), options=TILED)
        hdgemm.matmul(m[:20, :20], m[:20, 20:], out=m[20:, 20:], options=TILED)
        np.testing.assert_allclose(np.asarray(m)[20:, 20:], x[:20, :20] @ x[:20, 20:], atol=1e-12)
    with h5py.File(inputs / "a.h5", "r+") as file:
        c = file.create_dataset("C", (40, 40), "f8")
        hdgemm.matmul(file["A"], x, out=c, options=TILED)
        np.testing.assert_allclose(c[:], x @ x, atol=1e-12)


def test_the_state_of_a_folder_is_that_of_its_files(inputs):
    folder = inputs / "a.zarr"
    before = file_state(folder)
    assert before == file_state(folder)
    assert before.size > 40 * 40 * 8
    os.utime(folder / "zarr.json")
    assert file_state(folder) != before


def replaced_by_another(path):
    """Give the name of a file or folder to another one with other elements."""
    other = path.with_name("b.zarr" if path.is_dir() else f"other{path.suffix}")
    path.rename(path.with_name("before"))
    other.rename(path)


@pytest.mark.parametrize(
    ("routine", "location", "file"),
    [
        ("multiply", "a.npy", "a.npy"),
        ("durable", "a.npy", "a.npy"),
        ("syrk", "a.npy", "a.npy"),
        ("multiply", "a.zarr", "a.zarr"),
        ("multiply", "a.h5::A", "a.h5"),
    ],
)
def test_an_overwritten_matrix_keeps_its_name(inputs, routine, location, file):
    x, first = numbers(), nth_call(1)
    for suffix in (".npy", ".h5"):
        (inputs / f"other{suffix}").write_bytes((inputs / f"a{suffix}").read_bytes())

    def observer(event):
        if event.stage == "mult1" and first():
            replaced_by_another(inputs / file)

    calls = {
        "multiply": partial(hdgemm.multiply, x, x),
        "durable": partial(hdgemm.multiply, x, x, checkpoint=True),
        "syrk": partial(hdgemm.syrk, 1.0, x),
    }
    with (
        hdgemm.open(f"{inputs}/{location}", "r+") as c,
        pytest.raises(MatrixIOError, match=r"a\.\w+ was replaced by another file") as caught,
    ):
        calls[routine](out=c, options=TILED, observer=observer)
    assert caught.value.path == str(inputs / file)


@pytest.mark.skipif(sys.platform != "linux", reason="its file systems have a clock of whole ticks")
def test_a_change_in_the_tick_of_the_last_one_is_noticed(inputs):
    c, last = hdgemm.open(numbers()).operand.matrix, inputs / "b.zarr/c/4/4"
    with hdgemm.open(f"{inputs}/b.zarr") as a:
        for _ in range(20):
            last.write_bytes(last.read_bytes())
            with pytest.raises(MatrixIOError, match="was modified"), unchanged({"A": a.operand}, c):
                rewrite_chunk(inputs / "b.zarr")
