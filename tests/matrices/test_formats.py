"""Raw files, HDF5, Zarr and objects with rectangle indexing, each read and written."""

from __future__ import annotations

import errno
import os
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hdgemm.errors import InputError, InputTypeError, MatrixIOError
from hdgemm.matrices import _hdf5_draft, _zarrs as zarrs
from hdgemm.matrices._chunkfiles import ChunkFiles
from hdgemm.matrices._raw import RawLayout
from hdgemm.matrices._rectangles import RectangleMatrix
from hdgemm.matrices.draft import no_space, reserve
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.stores import create_matrix, reopen_draft
from hdgemm.product.aliasing import overlaps, same_elements

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")


def numbers(shape, dtype="f8", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def read(operand, row=0, col=0, shape=None, dtype=None):
    out = np.empty(shape or operand.matrix.shape, dtype or operand.matrix.dtype.newbyteorder("="))
    operand.matrix.read(row, col, out)
    return out.T if operand.trans else out


def dataset(path, x, **layout):
    with h5py.File(path, "a") as file:
        file.create_dataset("group/A", data=x, **layout)
    return f"{path}::/group/A"


def zarr_array(path, x, **layout):
    array = zarr.create_array(store=path, name="A", shape=x.shape, dtype=x.dtype, **layout)
    array[:] = x
    return f"{path}::A"


#: How a matrix can be kept, and the kind of matrix that it must be opened as.
LAYOUTS = {
    "h5-contiguous": (lambda p, x: dataset(p / "x.h5", x), FileMatrix),
    "h5-chunked": (lambda p, x: dataset(p / "x.h5", x, chunks=(7, 11)), ChunkFiles),
    "h5-gzip": (
        lambda p, x: dataset(p / "x.h5", x, chunks=(7, 11), compression="gzip", shuffle=True),
        RectangleMatrix,
    ),
    "h5-checked": (
        lambda p, x: dataset(p / "x.h5", x, chunks=(9, 5), fletcher32=True), RectangleMatrix,
    ),
    "zarr3-plain": (
        lambda p, x: zarr_array(p / "x.zarr", x, chunks=(7, 11), compressors=None), ChunkFiles,
    ),
    "zarr3": (lambda p, x: zarr_array(p / "x.zarr", x, chunks=(7, 11)), RectangleMatrix),
    "zarr3-sharded": (
        lambda p, x: zarr_array(p / "x.zarr", x, chunks=(7, 11), shards=(14, 22)), RectangleMatrix,
    ),
    "zarr2-plain": (
        lambda p, x: zarr_array(p / "x.zarr", x, chunks=(7, 11), compressors=None, zarr_format=2),
        ChunkFiles,
    ),
    "zarr2": (
        lambda p, x: zarr_array(p / "x.zarr", x, chunks=(7, 11), zarr_format=2), RectangleMatrix,
    ),
    "zarr2-columns": (
        lambda p, x: zarr_array(
            p / "x.zarr", x, chunks=(7, 11), compressors=None, zarr_format=2, order="F"
        ),
        RectangleMatrix,
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<c8", "<c16"])
def test_every_layout_is_read_and_written_in_place(tmp_path, layout, dtype):
    make, kind = LAYOUTS[layout]
    x = numbers((61, 83), dtype)
    where = make(tmp_path, x)
    operand = open_operand(where)
    assert isinstance(operand.matrix, kind)
    # Zarr 3 stores its elements little-endian, whatever it was given.
    assert operand.matrix.dtype == (x.dtype.newbyteorder("<") if "zarr3" in layout else x.dtype)
    assert operand.matrix.shape == x.shape
    np.testing.assert_array_equal(read(operand), x)
    np.testing.assert_array_equal(read(operand, 5, 9, (37, 41)), x[5:42, 9:50])
    np.testing.assert_array_equal(read(operand, 60, 0, (1, 83), "c16"), x[60:])
    operand.matrix.close()
    updated = open_operand(where, writable=True)
    tile = numbers((37, 41), dtype, 1)
    updated.matrix.write(5, 9, tile)
    x[5:42, 9:50] = tile
    np.testing.assert_array_equal(read(updated), x)
    updated.matrix.flush()
    updated.matrix.close()
    again = open_operand(where)
    np.testing.assert_array_equal(read(again), x)
    again.matrix.close()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["h5", "zarr"]),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 17), st.integers(1, 17)),
    st.data(),
)
def test_rectangles_of_any_chunks(kind, shape, chunk, data):
    x = numbers(shape)
    chunk = tuple(min(pair) for pair in zip(chunk, shape, strict=True))
    row, col = (data.draw(st.integers(0, extent)) for extent in shape)
    height, width = (
        data.draw(st.integers(0, extent - at)) for extent, at in zip(shape, (row, col), strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        if kind == "h5":
            where = dataset(Path(folder) / "x.h5", x, chunks=chunk)
        else:
            where = zarr_array(Path(folder) / "x.zarr", x, chunks=chunk, compressors=None)
        operand = open_operand(where, writable=True)
        assert operand.matrix.chunk == chunk
        tile = numbers((height, width), seed=1)
        operand.matrix.write(row, col, tile)
        x[row : row + height, col : col + width] = tile
        np.testing.assert_array_equal(read(operand), x)
        np.testing.assert_array_equal(read(operand, row, col, (height, width)), tile)
        operand.matrix.close()


@pytest.mark.parametrize("name", ["c.npy", "c.bin::70x51:<f8", "c.bin::70x51:<f8:F:13",
                                  "c.h5::/deep/er/C", "c.zarr", "c.zarr::deep/C"])  # fmt: skip
@pytest.mark.parametrize("before", [False, True])
def test_every_format_as_out(tmp_path, name, before):
    x = numbers((70, 51))
    where = f"{tmp_path}/{name}"
    if before:
        with create_matrix(where, (70, 51), "f8") as draft:
            draft.publish()
    with create_matrix(where, (70, 51), "f8") as draft:
        assert draft.operand.shape == (70, 51)
        draft.matrix.write(0, 0, np.ascontiguousarray(x.T if draft.trans else x))
        draft.publish()
    operand = open_operand(where)
    np.testing.assert_array_equal(read(operand), x)
    operand.matrix.close()
    assert not [path for path in tmp_path.rglob("*") if ".part" in path.name]
    if "h5" in name:
        with h5py.File(tmp_path / "c.h5") as file:
            np.testing.assert_array_equal(file["deep/er/C"][:], x)
            assert list(file["deep/er"]) == ["C"]
    if "zarr" in name:
        array = zarr.open_array(store=tmp_path / "c.zarr", path=parse_location(where).item)
        np.testing.assert_array_equal(array[:], x)


@pytest.mark.parametrize("name", ["c.h5::/g/C", "c.zarr::g/C", "c.bin::70x51:float64"])
def test_an_abandoned_out_leaves_what_was_there(tmp_path, name):
    where = f"{tmp_path}/{name}"
    with create_matrix(where, (70, 51), "f8") as draft:
        draft.matrix.write(0, 0, np.ones((70, 51)))
        draft.publish()
    with create_matrix(where, (70, 51), "f8") as draft:
        draft.matrix.write(0, 0, np.zeros((70, 51)))
    operand = open_operand(where)
    assert (read(operand) == 1).all()
    operand.matrix.close()
    assert not [path for path in tmp_path.rglob("*") if ".part" in path.name]
    if "h5" in name:
        with h5py.File(tmp_path / "c.h5") as file:
            assert list(file["g"]) == ["C"]


def test_an_out_in_a_file_with_others_keeps_them(tmp_path):
    x = numbers((90, 80))
    dataset(tmp_path / "x.h5", x, compression="gzip")
    with create_matrix(f"{tmp_path}/x.h5::B", (500, 300), "f4") as draft:
        draft.matrix.write(0, 0, np.full((500, 300), 2, "f4"))
        draft.publish()
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["group/A"][:], x)
        assert (file["B"][:] == 2).all()


@pytest.mark.parametrize("item", ["group/A", "group/B"])
def test_a_file_that_another_process_made_meanwhile_keeps_its_matrices(tmp_path, item):
    x = numbers((90, 80))
    with create_matrix(f"{tmp_path}/x.h5::group/B", (500, 300), "f4") as draft:
        draft.matrix.write(0, 0, np.full((500, 300), 2, "f4"))
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file[item] = x
        draft.publish()
    with h5py.File(tmp_path / "x.h5") as file:
        assert (file["group/B"][:] == 2).all()
        if item != "group/B":
            np.testing.assert_array_equal(file[item][:], x)
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_a_run_that_ends_before_the_draft_has_lost_its_name_is_published(tmp_path):
    place = parse_location(f"{tmp_path}/x.h5::B")
    draft = create_matrix(place, (50, 30), "f4", tmp_path / "part")
    draft.matrix.write(0, 0, np.ones((50, 30), "f4"))
    os.link(tmp_path / "part", tmp_path / "x.h5")
    with reopen_draft(place, tmp_path / "part") as draft:
        draft.publish()
    with h5py.File(tmp_path / "x.h5") as file:
        assert (file["B"][:] == 1).all()
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_large_new_datasets_start_on_a_block(tmp_path):
    with create_matrix(f"{tmp_path}/x.h5::B", (500, 300), "f8") as draft:
        assert draft.matrix.phase(0, 0) == 0
        assert draft.matrix.file.direct


@pytest.mark.parametrize("name", ["c.h5::C", "c.zarr::C", "c.bin::4194304x4194304:f8"])
def test_no_space_leaves_nothing(tmp_path, name):
    with pytest.raises(MatrixIOError, match="cannot reserve") as caught:
        create_matrix(f"{tmp_path}/{name}", (1 << 22, 1 << 22), "f8")
    assert caught.value.requested > caught.value.available
    assert not [path for path in tmp_path.rglob("*") if ".part" in path.name]


def test_a_user_block_moves_the_offset(tmp_path):
    x = numbers((20, 30))
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file["A"] = x
    operand = open_operand(f"{tmp_path}/x.h5::A")
    assert isinstance(operand.matrix, FileMatrix)
    np.testing.assert_array_equal(read(operand), x)
    operand.matrix.close()


def test_datasets_without_a_place_of_their_own(tmp_path):
    """Never written, external and virtual ones have no offset: h5py reads them."""
    x = numbers((20, 30))
    (tmp_path / "raw").write_bytes(x.tobytes())
    dataset(tmp_path / "y.h5", x)
    layout = h5py.VirtualLayout((20, 30), "f8")
    layout[:] = h5py.VirtualSource(tmp_path / "y.h5", "group/A", (20, 30))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("empty", (20, 30), "f8", fillvalue=3)
        file.create_dataset("chunks", (20, 30), "f8", chunks=(7, 7), fillvalue=4)
        file.create_dataset("outside", (20, 30), "f8", external=[(tmp_path / "raw", 0, x.nbytes)])
        file.create_virtual_dataset("virtual", layout)
    for name, wanted in (("empty", 3), ("chunks", 4), ("outside", x), ("virtual", x)):
        operand = open_operand(f"{tmp_path}/x.h5::{name}")
        np.testing.assert_array_equal(read(operand), np.broadcast_to(wanted, (20, 30)))
        operand.matrix.close()


def test_chunks_never_stored_hold_the_fill_value(tmp_path):
    zarr.create_array(
        store=tmp_path / "x.zarr", shape=(20, 30), chunks=(7, 7), dtype="f8", compressors=None,
        fill_value=5,
    )  # fmt: skip
    operand = open_operand(tmp_path / "x.zarr", writable=True)
    assert (read(operand) == 5).all()
    operand.matrix.write(6, 6, np.ones((2, 2)))
    expected = np.full((20, 30), 5.0)
    expected[6:8, 6:8] = 1
    np.testing.assert_array_equal(read(operand), expected)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[:], expected)


@pytest.mark.parametrize("layout", ["h5-gzip", "zarr3", "zarr3-plain", "h5-chunked"])
def test_neighbours_in_one_chunk_written_at_once(tmp_path, layout):
    where = LAYOUTS[layout][0](tmp_path, np.zeros((64, 64)))
    operand = open_operand(where, writable=True)
    x = numbers((64, 64))
    with ThreadPoolExecutor(8) as callers:
        places = [(i, j) for i in range(0, 64, 9) for j in range(0, 64, 9)]
        list(callers.map(lambda at: operand.matrix.write(*at, x[at[0]:at[0] + 9, at[1]:at[1] + 9]),
                         places))  # fmt: skip
    np.testing.assert_array_equal(read(operand), x)
    operand.matrix.close()


def test_objects_that_the_caller_has_open(tmp_path):
    x = numbers((61, 83))
    y = numbers((61, 83), seed=1)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["plain"] = x
        file.create_dataset("packed", data=x, chunks=(7, 11), compression="lzf")
        for name in ("plain", "packed"):
            operand = open_operand(file[name])
            np.testing.assert_array_equal(read(operand), x)
            operand.matrix.close()
            operand = open_operand(file[name], writable=True)
            operand.matrix.write(0, 0, y)
            operand.matrix.flush()
            operand.matrix.close()
            np.testing.assert_array_equal(file[name][:], y)
    with h5py.File(tmp_path / "x.h5") as file, pytest.raises(InputError, match="reading only"):
        open_operand(file["plain"], what="out", writable=True)
    array = zarr.create_array(store=zarr.storage.MemoryStore(), data=x, chunks=(9, 9))
    operand = open_operand(array, writable=True)
    assert operand.matrix.chunk == (9, 9)
    np.testing.assert_array_equal(read(operand), x)
    operand.matrix.write(0, 0, y)
    np.testing.assert_array_equal(array[:], y)


def test_one_store_overlaps_itself_by_whatever_name(tmp_path):
    x = numbers((61, 83))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["plain"], file["other"] = x, x
        file.create_dataset("packed", data=x, chunks=(7, 11), compression="lzf")
        file["alias"], file["again"] = file["plain"], file["packed"]
        for name, alias in (("plain", "alias"), ("packed", "again")):
            out = open_operand(file[name], writable=True)
            for source in (name, alias):
                same = open_operand(file[source])
                assert overlaps(out.matrix, same.matrix)
                assert same_elements(out, same)
                assert not same_elements(out, open_operand(file[source], trans=True))
            assert not overlaps(out.matrix, open_operand(file["other"]).matrix)
        with pytest.raises(InputError, match="2-D"):
            open_operand(file.create_dataset("cube", (2, 2, 2), "f8"), writable=True)
        with pytest.raises(InputTypeError, match="astype"):
            open_operand(file.create_dataset("whole", (2, 2), "i4"), writable=True)
    for compressors in (None, "auto"):
        where = zarr_array(tmp_path / f"{compressors}.zarr", x, compressors=compressors)
        out = open_operand(where, writable=True)
        assert overlaps(out.matrix, open_operand(where).matrix)
        array = zarr.open_array(store=tmp_path / f"{compressors}.zarr", path="A")
        assert overlaps(out.matrix, open_operand(array).matrix)
    assert not overlaps(out.matrix, open_operand(tmp_path / "None.zarr::A").matrix)


class Table:
    """The least that an operand can be: a shape, a dtype and rectangles."""

    def __init__(self, x):
        self.x, self.shape, self.dtype = x, x.shape, "float64"
        self.asked = []

    def __getitem__(self, key):
        self.asked.append(key)
        return self.x[key].tolist()


def test_anything_with_rectangle_indexing():
    x = numbers((61, 83))
    operand = open_operand(Table(x), trans=True)
    assert operand.shape == (83, 61)
    np.testing.assert_array_equal(read(operand), x.T)
    with pytest.raises(InputError, match="takes no elements"):
        open_operand(Table(x), what="out", writable=True)
    with pytest.raises(InputError, match="2-D"):
        open_operand(Table(x[0]))
    bad = Table(x)
    bad.dtype = "uint64"
    with pytest.raises(InputTypeError, match="uint64"):
        open_operand(bad)


def test_a_store_is_asked_for_whole_chunks_once():
    table = Table(numbers((64, 64)))
    table.chunks = (16, 8)
    operand = open_operand(table)
    operand.matrix.read(5, 3, np.empty((50, 60)))
    assert operand.matrix.chunk == (16, 8)
    for rows, cols in table.asked:
        assert rows.start in (5, 16, 32, 48)
        assert cols.start % 8 == 0 or cols.start == 3
    cells = {(r, c) for rows, cols in table.asked for r in range(rows.start, rows.stop)
             for c in range(cols.start, cols.stop)}  # fmt: skip
    assert len(cells) == 50 * 60


def test_a_store_that_fails_names_the_rectangle():
    class Broken(Table):
        def __getitem__(self, key):
            raise OSError("connection lost")

    matrix = open_operand(Broken(numbers((9, 9)))).matrix
    with pytest.raises(MatrixIOError, match="rows 2:5, columns 0:4 of Broken: connection lost"):
        matrix.read(2, 0, np.empty((3, 4)))

    class Short(Table):
        def __getitem__(self, key):
            return [[1.0]]

    with pytest.raises(MatrixIOError, match=r"gave \(1, 1\)"):
        open_operand(Short(numbers((9, 9)))).matrix.read(2, 0, np.empty((3, 4)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A.npy", Location(Path("A.npy"))),
        ("A", Location(Path("A"))),
        ("f.h5::/group/A", Location(Path("f.h5"), "hdf5", "group/A")),
        ("f.hdf5::A", Location(Path("f.hdf5"), "hdf5", "A")),
        ("s.zarr", Location(Path("s.zarr"), "zarr")),
        ("s.zarr::A", Location(Path("s.zarr"), "zarr", "A")),
        ("A.bin::2x3:<f4", Location(Path("A.bin"), "raw", raw=RawLayout((2, 3), "<f4"))),
        (
            "A.h5::2x3:float64:F:512",
            Location(Path("A.h5"), "raw", raw=RawLayout((2, 3), "float64", "F", 512)),
        ),
        ("A.bin::2x3:f8:9", Location(Path("A.bin"), "raw", raw=RawLayout((2, 3), "f8", "C", 9))),
    ],
)
def test_names(text, expected):
    assert parse_location(text) == expected


@pytest.mark.parametrize("text", ["f.h5", "f.h5::", "f.h5::/", "A.npy::x", "A.bin::2x3:f9"])
def test_names_that_are_not_whole(text):
    with pytest.raises(InputError):
        parse_location(text)
    with pytest.raises(InputTypeError):
        parse_location("A.bin::2x3:uint64")


def test_formats_are_known_by_their_beginning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dataset("data", numbers((2, 2)))
    zarr_array("store", numbers((2, 2)))
    np.save(tmp_path / "odd::name.npy", numbers((2, 2)))
    assert parse_location("data::group/A").format == "hdf5"
    assert parse_location("store::A").format == "zarr"
    assert parse_location("odd::name.npy") == Location(Path("odd::name.npy"))


def test_what_is_missing_is_said(tmp_path):
    dataset(tmp_path / "x.h5", numbers((3, 3)))
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file["top"], file["cube"], file["whole"] = [1.0], np.ones((2, 2, 2)), np.ones((2, 2), "u8")
    zarr_array(tmp_path / "x.zarr", numbers((3, 3)))
    for name, words in (
        ("x.h5::B", "no dataset 'B'; at its top level are: cube, top, whole"),
        ("x.h5::group", "no dataset 'group', but a group with A: write it like .*::/group/A'"),
        ("x.h5::cube", "2-D"), ("x.h5::top", "2-D"),
        ("x.h5::whole", "astype"), ("y.h5::A", "No such file"),
        ("x.zarr::B", "cannot open"), ("y.zarr::A", "no Zarr store"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            open_operand(tmp_path / name)
    (tmp_path / "z.h5").write_bytes(b"nothing of HDF5")
    with pytest.raises(InputError, match="as HDF5"):
        open_operand(f"{tmp_path}/z.h5::A")
    (tmp_path / "A.bin").write_bytes(b"12345")
    with pytest.raises(InputError, match="the file has 5"):
        open_operand(f"{tmp_path}/A.bin::2x3:f8")
    with pytest.raises(InputError, match=r"; of raw elements write A.bin::ROWSxCOLS:DTYPE"):
        open_operand(tmp_path / "A.bin")


def test_a_raw_file_that_is_longer_than_its_layout_needs_an_offset(tmp_path):
    x = numbers((6, 5))
    x.tofile(tmp_path / "A.bin")
    for layout in ("2x5:float64", "5x2:float64:F"):
        with pytest.raises(InputError, match=r"has 240 bytes, a .* matrix has 80: .* append :0 to"):
            open_operand(f"{tmp_path}/A.bin::{layout}")
    np.testing.assert_array_equal(read(open_operand(f"{tmp_path}/A.bin::2x5:float64:0")), x[:2])
    np.testing.assert_array_equal(read(open_operand(f"{tmp_path}/A.bin::2x5:float64:80")), x[2:4])


def test_a_new_raw_file_has_the_shape_of_its_location(tmp_path):
    with pytest.raises(
        InputError, match=r"is 3×4 float64, its .* says 3×5 float64: write c.bin::3x4:"
    ):
        create_matrix(f"{tmp_path}/c.bin::3x5:float64", (3, 4), "f8")


def test_truncated_chunks_are_an_error(tmp_path):
    where = LAYOUTS["zarr3-plain"][0](tmp_path, numbers((61, 83)))
    os.truncate(tmp_path / "x.zarr" / "A" / "c" / "2" / "3", 100)
    operand = open_operand(where)
    read(operand, 0, 0, (14, 83))
    with pytest.raises(MatrixIOError, match=r"chunk \(2, 3\) of .* truncated"):
        read(operand)


@pytest.mark.parametrize("name", ["c.h5::C", "c.zarr", "c.bin::0x5:f8", "c.npy"])
def test_matrices_without_elements(tmp_path, name):
    with create_matrix(f"{tmp_path}/{name}", (0, 5), "f8") as draft:
        draft.matrix.write(0, 0, np.empty((0, 5)))
        draft.publish()
    operand = open_operand(f"{tmp_path}/{name}")
    assert read(operand).shape == (0, 5)
    operand.matrix.close()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
def test_a_new_array_has_the_format_of_its_group(tmp_path, version, consolidated):
    x = numbers((30, 20))
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=version)
    group.create_array("A", data=x)
    if consolidated:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr's, of consolidated metadata in format 3
            zarr.consolidate_metadata(tmp_path / "g.zarr")
    for name in ("C", "deep/er/C"):
        with create_matrix(f"{tmp_path}/g.zarr::{name}", (30, 20), "f8") as draft:
            draft.matrix.write(0, 0, x)
            draft.publish()
    group = zarr.open_group(tmp_path / "g.zarr", mode="r")
    assert (group.metadata.consolidated_metadata is not None) == consolidated
    for name in ("A", "C", "deep/er/C"):
        assert group[name].metadata.zarr_format == version
        np.testing.assert_array_equal(group[name][:], x)
    metadata = {path.name for path in (tmp_path / "g.zarr").rglob("*") if not path.is_dir()}
    assert ("zarr.json" in metadata, ".zarray" in metadata) == (version == 3, version == 2)


@pytest.mark.parametrize("version", [2, 3])
def test_an_array_is_replaced_in_its_own_format(tmp_path, version):
    zarr.create_array(store=tmp_path / "c.zarr", data=numbers((5, 5)), zarr_format=version)
    with create_matrix(tmp_path / "c.zarr", (30, 20), "f8") as draft:
        draft.publish()
    assert zarr.open_array(tmp_path / "c.zarr", mode="r").metadata.zarr_format == version


@pytest.mark.parametrize("name", ["c.zarr", "c.zarr::C", "c.zarr::deep/er/C", "g.zarr::in/C"])
def test_a_full_disk_leaves_nothing_of_a_zarr_array(tmp_path, monkeypatch, name):
    zarr.open_group(tmp_path / "g.zarr", mode="w").create_array("A", data=numbers((5, 5)))
    before = sorted(tmp_path.rglob("*"))
    calls = []

    def full(path, header, nbytes, part=None):
        calls.append(path)
        if len(calls) == 3:
            raise no_space(path, nbytes, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return reserve(path, header, nbytes, part)

    monkeypatch.setattr(zarrs, "reserve", full)
    with pytest.raises(MatrixIOError, match="No space left"):
        create_matrix(f"{tmp_path}/{name}", (4096, 2048), "f8")
    assert sorted(tmp_path.rglob("*")) == before
    monkeypatch.undo()
    with pytest.raises(MatrixIOError, match="cannot reserve"):
        create_matrix(f"{tmp_path}/{name}", (1 << 24, 1 << 24), "f8")
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(RuntimeError), create_matrix(f"{tmp_path}/{name}", (64, 64), "f8"):
        raise RuntimeError
    assert sorted(tmp_path.rglob("*")) == before


def test_an_abandoned_dataset_leaves_no_groups(tmp_path):
    dataset(tmp_path / "x.h5", numbers((5, 5)))
    size = (tmp_path / "x.h5").stat().st_size
    for item in ("deep/er/C", "group/new/C", "group/C"):
        create_matrix(f"{tmp_path}/x.h5::{item}", (2000, 2000), "f8").discard()
        with h5py.File(tmp_path / "x.h5") as file:
            assert list(file) == ["group"]
            assert list(file["group"]) == ["A"]
        assert (tmp_path / "x.h5").stat().st_size < size + (1 << 16)


@pytest.mark.parametrize("name", ["new.h5::C", "old.h5::deep/C"])
def test_a_dataset_that_cannot_be_opened_leaves_nothing(tmp_path, monkeypatch, name):
    def refused(path, **_):
        raise InputError(f"cannot open {path}: Too many open files")

    dataset(tmp_path / "old.h5", numbers((5, 5)))
    monkeypatch.setattr(_hdf5_draft, "BlockFile", refused)
    with pytest.raises(InputError, match="Too many open files"):
        create_matrix(f"{tmp_path}/{name}", (64, 64), "f8")
    assert [path.name for path in tmp_path.iterdir()] == ["old.h5"]
    with h5py.File(tmp_path / "old.h5") as file:
        assert list(file) == ["group"]


def test_a_zarr_store_in_a_folder_that_is_missing(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        create_matrix(f"{tmp_path}/missing/c.zarr::C", (64, 64), "f8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["C.h5::g", "C.h5::g/B/C", "C.zarr::g", "C.zarr", "C.zarr::g/B/C"])
def test_an_out_never_takes_the_place_of_a_group(tmp_path, name):
    with h5py.File(tmp_path / "C.h5", "w") as file:
        file["g/B"] = np.eye(3)
    zarr.open_group(tmp_path / "C.zarr", mode="w").create_group("g").create_array(
        "B", data=np.eye(3)
    )
    with pytest.raises(InputError, match=r"choose another name|no Zarr group"):
        create_matrix(f"{tmp_path}/{name}", (2, 2), "f8")
    for kept in ("C.h5::g/B", "C.zarr::g/B"):
        assert open_operand(f"{tmp_path}/{kept}").shape == (3, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["C.h5", "C.zarr"]
