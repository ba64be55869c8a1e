"""Formats that are read and not written, and operands of Dask."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr

import hdgemm
from hdgemm.errors import DoesNotFitError, InputError, InputTypeError
from hdgemm.matrices._rectangles import RectangleMatrix
from hdgemm.matrices.filematrix import FileMatrix

TILED = hdgemm.Options(host_memory="20MB", devices="host", tile=(32, 24, 16))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def multiplies(location, x):
    """Check that a location is the matrix x, in every use."""
    with hdgemm.open(location) as m:
        np.testing.assert_array_equal(m.read(), x)
        np.testing.assert_array_equal(m[3:40:2, 1:], x[3:40:2, 1:])
    found = hdgemm.multiply(location, x.T, out="C.npy", options=TILED)
    np.testing.assert_allclose(np.load("C.npy"), x @ x.T, atol=1e-12)
    assert found.moved_bytes == found.planned_bytes


@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_members_are_read_at_their_offsets(order):
    x = np.asarray(numbers(70, 50), order=order)
    np.savez("A.npz", x=x, other=x[:3])
    multiplies("A.npz::x", x)
    assert isinstance(hdgemm.open("A.npz::x").operand.matrix, FileMatrix)
    np.savez("one.npz", x)
    multiplies("one.npz", x)
    np.savez("v.npz", x[0])
    assert hdgemm.open("v.npz").shape == (50, 1)


def test_npz_archives_that_cannot_be_read():
    x = numbers(70, 50)
    np.savez("A.npz", x=x, y=x)
    np.savez_compressed("packed.npz", x=x)
    np.savez("cube.npz", np.ones((2, 2, 2)))
    with open("A.npz", "rb") as file:  # noqa: PTH123
        whole = file.read()
    for name, content in (("cut.npz", whole[:-40]), ("text.npz", b"none"), ("empty.npz", b"")):
        with open(name, "wb") as file:  # noqa: PTH123
            file.write(content)
    for location, words in (
        ("A.npz", "several arrays.*x, y"), ("A.npz::z", "no array 'z'"), ("packed.npz", "savez"),
        ("cube.npz", "2-D"), ("cut.npz::x", "cannot read"), ("text.npz", "cannot read"),
        ("empty.npz", "cannot read"), ("none.npz", "No such file|cannot"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            hdgemm.open(location)
    with pytest.raises(InputError, match="does not write"):
        hdgemm.open("A.npz::x", "r+")


@pytest.mark.parametrize("chunks", [None, (16, 8)])
def test_matlab_files_hold_the_transpose(chunks):
    x = numbers(70, 50)
    with h5py.File("A.mat", "w", userblock_size=512) as file:
        file.create_dataset("A", data=x.T, chunks=chunks)
    with open("A.mat", "r+b") as file:  # noqa: PTH123
        file.write(b"MATLAB 7.3 MAT-file")
    multiplies("A.mat::A", x)
    multiplies("A.mat", x)
    scipy.io.savemat("old.mat", {"A": x})
    with pytest.raises(InputError, match=r"-v7\.3"):
        hdgemm.open("old.mat::A")
    with pytest.raises(InputError, match="does not write"):
        hdgemm.open("A.mat::A", "r+")


def test_a_store_with_one_matrix_needs_no_name():
    x = numbers(70, 50)
    with h5py.File("A.h5", "w") as file:
        file["group/x"], file["vector"] = x, x[0]
    multiplies("A.h5", x)
    zarr.open_group("A.zarr", mode="w").create_array("x", data=x)
    multiplies("A.zarr", x)
    with h5py.File("A.h5", "a") as file:
        file["y"] = x
    with pytest.raises(InputError, match="group/x, y"):
        hdgemm.open("A.h5")
    for location in ("A.h5", "new.h5"):
        with pytest.raises(InputError, match="names no dataset"):
            hdgemm.matmul(x, x.T, out=location)


@pytest.mark.parametrize("suffix", ["npz", "mat", "csv", "parquet", "arrow", "feather"])
def test_nothing_is_written_in_them(suffix):
    for call in (
        lambda: hdgemm.matmul(np.eye(3), np.eye(3), out=f"C.{suffix}"),
        lambda: hdgemm.create(f"C.{suffix}", (3, 3)),
    ):
        with pytest.raises(InputError, match="suffix of another format"):
            call()


@pytest.mark.parametrize("header", ["", "a,b,c"])
@pytest.mark.parametrize(("name", "delimiter"), [("A.csv", ","), ("A.tsv", "\t")])
def test_the_lines_that_convert_a_text_work(name, delimiter, header):
    x = numbers(5, 3)
    np.savetxt(name, x, delimiter=delimiter, header=header, comments="")
    with pytest.raises(InputError, match="convert it") as caught:
        hdgemm.open(name)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == 2
    exec("import numpy\n" + "\n".join(line.strip() for line in lines))
    np.testing.assert_allclose(hdgemm.open("A.npy").read(), x)


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"", "it is empty"), (b"1 2 3\n4 5 6\n", "text: load it with numpy.loadtxt"),
     (b"PK\x03\x04" + bytes(99), "ZIP archive, as torch.save"),
     (pickle.dumps([1.0]), "pickle, which hdgemm never loads"),
     (bytes(99), r"of raw elements write A.x::ROWSxCOLS:DTYPE")],
)  # fmt: skip
def test_a_file_of_another_program_is_named(start, kind):
    Path("A.x").write_bytes(start)
    with pytest.raises(InputError, match=f"is not a .npy file: .*{kind}") as caught:
        hdgemm.open("A.x")
    assert ("raw elements" in str(caught.value)) == ("raw" in kind)


def test_a_text_that_is_missing_is_missing():
    with pytest.raises(InputError, match=r"cannot open .*No such file"):
        hdgemm.open("A.csv")


def test_dask_operands_are_read_by_chunk():
    da = pytest.importorskip("dask.array")
    x, computed = numbers(96, 64), []

    def chunk(block):
        computed.append(block.shape)
        return block + 1

    d = da.from_array(x, chunks=(32, 16)).map_blocks(chunk, dtype=float)
    computed.clear()
    matrix = hdgemm.open(d).operand.matrix.stored
    assert isinstance(matrix, RectangleMatrix)
    assert matrix.chunk == (32, 16)
    assert not computed
    options = hdgemm.Options(host_memory="20MB", devices="host", tile=(32, 24, 16))
    found = hdgemm.matmul(d, np.ones((64, 24)), options=options)
    np.testing.assert_allclose(found, (x + 1) @ np.ones((64, 24)))
    assert set(computed) == {(32, 16)}
    assert len(computed) == 3 * 4  # each chunk once
    with pytest.raises(InputError, match="rechunk"):
        hdgemm.matmul(d.rechunk(((30, 36, 30), 16)), np.ones((64, 4)))
    with pytest.raises(InputError, match="rechunk"):
        hdgemm.matmul(d[d[:, 0] > 0], np.ones((64, 4)))
    with hdgemm.set_options(host_memory="4kB"), pytest.raises(DoesNotFitError, match="rechunk"):
        hdgemm.matmul(d, np.ones((64, 4)))


def test_sparse_matrices_are_refused_in_a_sentence():
    with pytest.raises(InputTypeError, match=r"dense matrices: pass its toarray\(\)"):
        hdgemm.matmul(scipy.sparse.eye(3).tocsr(), np.eye(3))
