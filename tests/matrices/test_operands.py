"""What a caller passes, against what NumPy makes of it."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import hdgemm
from hdgemm.errors import InputError, InputTypeError
from hdgemm.matrices import arrays
from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.base import Matrix
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.operands import open_operand

DTYPES = ("<f4", ">f4", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16")


@pytest.mark.parametrize("strides", [(0, 8), (8, 0), (8, 8), (24, 8), (-8, 16), (4, 64)])
def test_an_output_whose_elements_share_memory_is_refused(strides):
    shape = (4, 5)
    x = np.lib.stride_tricks.as_strided(np.zeros(64)[32:], shape, strides)
    with pytest.raises(InputError, match="share memory"):
        open_operand(x, writable=True)


@pytest.mark.parametrize("view", ["x[::2, ::3]", "x[::-1, ::-2].T", "x[:1]", "x[:, :1]", "x[:0]"])
def test_an_output_with_any_strides_of_its_own_is_taken(view):
    open_operand(eval(view, {"x": np.zeros((6, 7))}), writable=True)


def seen(operand):
    """The whole of op(X), read through the matrix."""
    out = np.empty(operand.matrix.shape, np.complex128)
    operand.matrix.read(0, 0, out)
    out = out.T if operand.trans else out
    return out.conj() if operand.conj else out


def numbers(shape, dtype, seed=0):
    values = np.random.default_rng(seed).standard_normal((*shape, 2))
    if np.dtype(dtype).kind == "c":
        return values.view(np.complex128)[..., 0].astype(dtype)
    return values[..., 0].astype(dtype)


@st.composite
def strided(draw):
    """An array of any dtype, order, steps and signs."""
    dtype = draw(st.sampled_from(DTYPES))
    rows, cols = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    steps = tuple(draw(st.sampled_from((1, 2, 3, -1, -2))) for _ in range(2))
    extents = tuple(n * abs(step) for n, step in zip((rows, cols), steps, strict=True))
    x = numbers(extents, dtype, draw(st.integers(0, 99)))
    x = np.asarray(x, order=draw(st.sampled_from("CF")))[:: steps[0], :: steps[1]]
    if draw(st.booleans()):
        x.flags.writeable = False
    return x


@given(strided(), st.booleans(), st.booleans())
def test_any_array_is_read_as_numpy_sees_it(x, trans, conj):
    operand = open_operand(x, trans=trans, conj=conj)
    wanted = x.T if trans else x
    np.testing.assert_array_equal(seen(operand), wanted.conj() if conj else wanted)
    assert operand.shape == wanted.shape


@given(strided(), st.data())
def test_any_array_takes_a_rectangle(x, data):
    x = x.copy() if not x.flags.writeable else x
    operand = open_operand(x, writable=True)
    rows, cols = operand.matrix.shape
    top, left = data.draw(st.integers(0, rows)), data.draw(st.integers(0, cols))
    tile = numbers((rows - top, cols - left), x.dtype.newbyteorder("="), 5)
    wanted = (x.T if operand.trans else x).copy()
    wanted[top:, left:] = tile
    operand.matrix.write(top, left, tile)
    np.testing.assert_array_equal(x.T if operand.trans else x, wanted)


def test_orders_choose_the_orientation():
    x = numbers((5, 7), "f8")
    assert open_operand(x).trans is False
    assert open_operand(np.asfortranarray(x)).trans is True
    assert open_operand(np.asfortranarray(x), trans=True).trans is False
    assert open_operand(np.asfortranarray(x)).matrix.array.flags.c_contiguous
    assert open_operand(x[::-1, ::2]).matrix.shape == (5, 4)
    assert open_operand(x).matrix.array.base is x


def test_large_copies_are_exact():
    x = numbers((3000, 1500), "f8")
    operand = open_operand(x[::-1])
    out = np.empty((2999, 1490), np.float32)
    operand.matrix.read(1, 10, out)
    np.testing.assert_array_equal(out, x[::-1][1:, 10:].astype("f4"))


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_memmaps_are_read_through_their_file(tmp_path, order, mode):
    x = numbers((60, 47), "<f8")
    path = tmp_path / "x.npy"
    np.save(path, np.asarray(x, order=order))
    mapped = np.load(path, mmap_mode=mode)
    for view, wanted in (
        (mapped, x),
        (mapped[5:41], x[5:41]),
        (mapped[:, 3:9], x[:, 3:9]),
        (mapped[7:, 3:][2:, 1:].T, x[9:, 4:].T),
        (np.asarray(mapped), x),
    ):
        operand = open_operand(view)
        assert isinstance(operand.matrix, ArrayMatrix if mode == "c" else FileMatrix)
        np.testing.assert_array_equal(seen(operand), wanted)
        operand.matrix.close()
    assert isinstance(open_operand(mapped[::2]).matrix, FileMatrix if order == "C" and mode != "c"
                      else ArrayMatrix)  # fmt: skip
    assert isinstance(open_operand(mapped[::-1, ::-1]).matrix, ArrayMatrix)


def test_a_plain_memmap_with_an_offset(tmp_path):
    path = tmp_path / "raw"
    mapped = np.memmap(path, np.float32, "w+", offset=70_004, shape=(33, 21))
    mapped[:] = numbers((33, 21), "f4")
    operand = open_operand(mapped[3:])
    assert isinstance(operand.matrix, FileMatrix)
    assert operand.matrix.offset == 70_004 + 3 * 21 * 4
    np.testing.assert_array_equal(seen(operand), mapped[3:])
    operand.matrix.close()


def test_unflushed_changes_of_a_memmap_are_seen(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((700, 900)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+")
    mapped[123, 456] = 7
    operand = open_operand(mapped)
    assert seen(operand)[123, 456] == 7
    operand.matrix.close()


def test_changes_of_a_copy_on_write_memmap_are_seen(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((70, 90)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    mapped[12, 45] = 7
    assert seen(open_operand(mapped))[12, 45] == 7


def test_what_is_written_shows_in_the_memmap(tmp_path):
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float64, (300, 1000))
    assert mapped.sum() == 0
    operand = open_operand(mapped, writable=True)
    tile = numbers((290, 985), "f8")
    operand.matrix.write(7, 11, tile)
    np.testing.assert_array_equal(mapped[7:297, 11:996], tile)
    assert not mapped[:7].any()
    assert not mapped[:, :11].any()
    assert not mapped[:, 996:].any()
    operand.matrix.close()


def test_a_memmap_whose_file_was_replaced_stays_itself(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((40, 30)))
    mapped = np.load(path, mmap_mode="r")
    np.save(tmp_path / "other.npy", np.zeros((40, 30)))
    (tmp_path / "other.npy").replace(path)
    operand = open_operand(mapped)
    assert isinstance(operand.matrix, ArrayMatrix)
    assert (seen(operand) == 1).all()


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((2, 2), np.uint64), "astype"),
        (np.ones((2, 2), object), "astype"),
        (np.ones((2, 2), np.longdouble), "float64"),
        (np.ones((2, 2), np.clongdouble), "complex128"),
        (np.ones((2, 2), "U3"), "numbers"),
        (np.ones((2, 2), "f8,f8"), "field"),
        (np.ma.masked_array(np.ones((2, 2)), mask=True), "masked array: fill it"),
        ([[1.0, 2.0], [3.0]], "list and no matrix"),
        (None, "NoneType"),
    ],
)
def test_what_cannot_be_multiplied_is_said(x, words):
    with pytest.raises(InputTypeError, match=words) as caught:
        open_operand(x, what="b")
    assert str(caught.value).startswith("b ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_list_is_copied_and_never_written():
    np.testing.assert_array_equal(seen(open_operand([[1, 2], [3, 4]])), [[1, 2], [3, 4]])
    with pytest.raises(InputTypeError, match="out is a list; it must be a 2-D array"):
        open_operand([[1.0]], what="out", writable=True)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_only_matrices(shape, tmp_path):
    with pytest.raises(InputError, match="2-D") as caught:
        open_operand(np.ones(shape))
    assert caught.value.shape == shape
    np.save(tmp_path / "x.npy", np.ones(shape))
    if len(shape) == 1:
        assert open_operand(tmp_path / "x.npy").shape == (3, 1)
        return
    with pytest.raises(InputError, match="2-D"):
        open_operand(tmp_path / "x.npy")


def test_out_must_be_writable(tmp_path):
    x = np.ones((3, 3))
    x.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        open_operand(x, what="out", writable=True)
    shared = np.lib.stride_tricks.as_strided(np.zeros(3), (4, 3), (0, 8))
    with pytest.raises(InputError, match="share"):
        open_operand(shared, what="out", writable=True)
    np.save(tmp_path / "x.npy", np.ones((3, 3)))
    with pytest.raises(InputError, match="read-only"):
        open_operand(np.load(tmp_path / "x.npy", mmap_mode="r"), writable=True)


def test_paths_that_are_no_matrix(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        open_operand(tmp_path / "nothing.npy")
    with pytest.raises(InputError, match="directory"):
        open_operand(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(InputError, match="FIFO"):
        open_operand(tmp_path / "pipe.npy")


@given(st.sampled_from(DTYPES), st.integers(0, 40), st.integers(0, 40), st.sampled_from("CF"))
def test_paths_read_as_numpy_reads_them(dtype, rows, cols, order):
    x = np.asarray(numbers((rows, cols), dtype), order=order)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        np.save(path, x)
        operand = open_operand(path)
        np.testing.assert_array_equal(seen(operand), x)
        assert operand.matrix.dtype == x.dtype
        operand.matrix.close()


class Tensor:
    """A matrix of another library in host memory: DLPack, and a dtype that NumPy does not know."""

    dtype = "tensor.float64"

    def __init__(self, values, device=(1, 0)):
        self.values, self.device, self.shape = values, device, values.shape

    def __getitem__(self, key):
        raise AssertionError("read by rectangles")

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        if self.values.dtype == bool:
            raise BufferError("can't export tensors that require gradient")
        return self.values.__dlpack__(**keywords)


@pytest.mark.parametrize("device", [(1, 0), (3, 0)])
def test_tensors_in_host_memory_are_used_in_place(device):
    a, b, c = (np.random.default_rng(seed).random((4, 4)) for seed in range(3))
    out = Tensor(c, device)
    hdgemm.multiply(Tensor(a.T), Tensor(b, device), out=out)
    assert np.allclose(c, a.T @ b)
    assert open_operand(out, writable=True).matrix.array.ctypes.data == c.ctypes.data


def test_a_tensor_that_cannot_be_read_is_refused_with_its_librarys_reason():
    with pytest.raises(InputTypeError, match=r"b is of type Tensor.* require gradient"):
        open_operand(Tensor(np.zeros((2, 2), bool)), what="b")
    x = np.zeros((2, 2))
    x.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        open_operand(Tensor(x), writable=True)


@pytest.mark.parametrize("dtype", ["f4", "f8", "F", "D", ">f8"])
@pytest.mark.parametrize("factor", [1, -0.5])
def test_arrays_are_added_by_several_threads_as_other_matrices_are(monkeypatch, dtype, factor):
    monkeypatch.setattr(arrays, "SLAB_BYTES", 512)
    rng, kind = np.random.default_rng(0), np.dtype(dtype).newbyteorder("=")
    x = rng.standard_normal((70, 50)).astype(dtype)
    x[3, 4] = np.inf
    tile, scratch = rng.standard_normal((60, 40)).astype(kind), np.empty(1000, np.uint8)
    tile[2, 3] = -np.inf
    expected, matrix = tile.copy(), ArrayMatrix(x)
    matrix.add_to(1, 2, kind.type(factor), tile, scratch)
    Matrix.add_to(matrix, 1, 2, kind.type(factor), expected, scratch)
    assert np.array_equal(tile, expected, equal_nan=True)
