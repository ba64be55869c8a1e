"""Chunks of HDF5 that gzip compressed: decoded here, in no more memory than a chunk has bytes."""

import zlib
from contextlib import closing

import h5py
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices._compressed_chunks import _IDLE, CompressedChunks
from hdgemm.matrices._hdf5_chunks import ChunkTable
from hdgemm.matrices.operands import open_operand
from tests.matrices.test_zarr_store import traced

DTYPES = ["f2", "f4", ">f8", "c8", "c16", "i1", "u2", ">i4", "i8", "bool"]


def written(path, x, **layout):
    """Store a matrix; return its location."""
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, compression="gzip", **layout)
    return f"{path}::/x"


def encoded(location):
    """Return whether a matrix is decoded here."""
    with closing(open_operand(location).matrix) as matrix:
        return isinstance(matrix, CompressedChunks)


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.data(),
)
def test_every_rectangle_is_h5pys(tmp_path_factory, shape, chunk, dtype, shuffle, data):
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    chunks = tuple(min(pair) for pair in zip(shape, chunk, strict=True))
    place = written(tmp_path_factory.mktemp("h") / "x.h5", x, chunks=chunks, shuffle=shuffle)
    (r0, r1), (c0, c1) = (
        sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape
    )
    with hdgemm.open(place) as matrix:
        np.testing.assert_array_equal(np.asarray(matrix), x)
        np.testing.assert_array_equal(np.asarray(matrix[r0:r1, c0:c1]), x[r0:r1, c0:c1])


def test_chunks_that_were_never_stored_have_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset(
            "x", (50, 60), "f4", chunks=(20, 25), compression="gzip", fillvalue=7
        )
        made[20:30, 10:30] = 1
        expected = made[:]
    np.testing.assert_array_equal(np.asarray(hdgemm.open(f"{tmp_path / 'x.h5'}::/x")), expected)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("nbytes", [800 - 8, 800 + 8, 64 << 20])
def test_a_chunk_that_decompresses_to_another_size_is_refused(tmp_path, shuffle, nbytes):
    """HDF5 would take the memory, and read the first 800 bytes."""
    place = written(tmp_path / "x.h5", np.ones((20, 20)), chunks=(10, 10), shuffle=shuffle)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["x"].id.write_direct_chunk((10, 0), zlib.compress(bytes(nbytes)))
    size = nbytes if nbytes < 800 else "more than 800"
    with hdgemm.open(place) as matrix, traced() as peak:
        with pytest.raises(MatrixIOError, match=f"decompresses to {size} bytes.* has 800"):
            matrix.read()
        assert peak() < 4 << 20


@pytest.mark.parametrize("content", [b"", b"\x00" * 50, zlib.compress(bytes(800))[:-6]])
def test_a_damaged_chunk_is_an_error(tmp_path, content):
    place = written(tmp_path / "x.h5", np.ones((20, 20)), chunks=(10, 10))
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["x"].id.write_direct_chunk((0, 10), content or b"x")
    with pytest.raises(MatrixIOError, match="cannot read rows"):
        hdgemm.open(place).read()


def test_a_chunk_of_more_bytes_than_gzip_could_make_is_not_read(tmp_path):
    place = written(tmp_path / "x.h5", np.ones((20, 20)), chunks=(10, 10))
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["x"].id.write_direct_chunk((0, 0), zlib.compress(bytes(800)) + bytes(1 << 20))
    with pytest.raises(MatrixIOError, match=r"chunk \(0, 0\) has 10485\d\d bytes"):
        hdgemm.open(place).read()


def test_chunks_without_their_filters_and_other_filters_are_left_to_hdf5(tmp_path):
    x = np.arange(400.0).reshape(20, 20)
    place = written(tmp_path / "x.h5", x, chunks=(10, 10))
    assert encoded(place)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["x"].id.write_direct_chunk((0, 0), x[:10, :10].tobytes(), filter_mask=1)
    checked = written(tmp_path / "y.h5", x, chunks=(10, 10), fletcher32=True)
    for other in (place, checked):
        assert not encoded(other)
        np.testing.assert_array_equal(np.asarray(hdgemm.open(other)), x)


def test_nothing_moves_the_chunks_of_an_open_matrix(tmp_path):
    x = np.arange(400.0).reshape(20, 20)
    place = written(tmp_path / "x.h5", x, chunks=(10, 10))
    with hdgemm.open(place) as matrix:
        with pytest.raises(InputError, match="has open for reading"):
            hdgemm.open(place, "r+")
        np.testing.assert_array_equal(np.asarray(matrix), x)
    hdgemm.open(place, "r+").close()


@pytest.mark.parametrize("shuffle", [False, True])
def test_whole_chunks_are_decoded_into_their_place(tmp_path, shuffle):
    """A copy of each would take its memory once more."""
    x = np.random.default_rng(0).integers(0, 9, (3000, 500)).astype("f8")
    place = written(tmp_path / "x.h5", x, chunks=(1500, 500), shuffle=shuffle)
    found = np.empty_like(x)
    _IDLE.clear()
    with hdgemm.open(place) as matrix:
        matrix.read(found)
    np.testing.assert_array_equal(found, x)
    assert _IDLE
    assert all(buffers.nbytes < x.nbytes // 4 for buffers in _IDLE)


def test_the_table_of_chunks_finds_what_h5py_tells(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("x", (50, 65), "f4", chunks=(20, 10), compression="gzip")
        for row, col in ((45, 60), (0, 0), (20, 30), (20, 10), (0, 64)):  # not in their order
            made[row, col] = 1
        stored = {}
        made.id.chunk_iter(lambda each: stored.update({each.chunk_offset: each}))
        table = ChunkTable(made)
        for i, j in np.ndindex(3, 7):
            told = stored.get((20 * i, 10 * j))
            expected = None if told is None else (told.byte_offset, told.size)
            assert table.find((i, j)) == expected
        assert not table.unfiltered


def test_a_table_without_chunks_finds_none(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("x", (50, 65), "f4", chunks=(20, 10), compression="gzip")
        assert ChunkTable(made).find((0, 0)) is None
