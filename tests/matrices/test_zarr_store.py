"""Zarr stores with chunks that exist and cannot be read: errors, never fill values or a wait."""

import asyncio
import gc
import lzma
import os
import shutil
import signal
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr

import hdgemm
from hdgemm.errors import HdgemmError, InputError, MatrixIOError
from hdgemm.matrices import _compressed_chunks, zarr_draft
from hdgemm.matrices.stores import create_matrix

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")

LAYOUTS = {
    "plain": {"compressors": None},
    "compressed": {},
    "sharded": {"shards": (20, 20), "chunks": (10, 10)},
    "format 2": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
}
STORES = {
    "path": str,
    "file": lambda path: zarr.open_array(f"file://{path}", mode="r"),
    "fsspec": lambda path: zarr.open_array(
        zarr.storage.FsspecStore.from_url(f"file://{path}"), mode="r"
    ),
    "obstore": lambda path: zarr.open_array(
        zarr.storage.ObjectStore(
            pytest.importorskip("obstore").store.LocalStore(prefix=str(path)), read_only=True
        ),
        mode="r",
    ),
}


def make(path, layout):
    x = np.random.default_rng(0).standard_normal((40, 40))
    array = zarr.create_array(
        path, shape=x.shape, dtype=x.dtype, **({"chunks": (20, 20)} | LAYOUTS[layout])
    )
    array[:] = x
    return x, path / array.metadata.encode_chunk_key((1, 1))


def as_directory(chunk):
    chunk.mkdir()


def as_dangling_link(chunk):
    chunk.symlink_to(chunk.with_name("nowhere"))


def as_loop(chunk):
    chunk.symlink_to(chunk)


def as_fifo(chunk):
    os.mkfifo(chunk)


def as_device(chunk):
    chunk.symlink_to("/dev/zero")


def below_a_file(chunk):
    (chunk.parent / "0").unlink()
    chunk.parent.rmdir()
    chunk.parent.write_bytes(b"")


def below_a_dangling_link(chunk):
    (chunk.parent / "0").unlink()
    chunk.parent.rmdir()
    chunk.parent.symlink_to("nowhere")


BROKEN = [as_directory, as_dangling_link, as_loop, as_fifo, as_device, below_a_file,
          below_a_dangling_link]  # fmt: skip


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_chunk_that_cannot_be_read_is_an_error(tmp_path, broken, layout, store):
    """Without the check they read as zeros, or wait for ever."""
    _, chunk = make(tmp_path / "x.zarr", layout)
    chunk.unlink()
    broken(chunk)
    with pytest.raises(MatrixIOError, match=r"x\.zarr"):
        np.asarray(hdgemm.open(STORES[store](tmp_path / "x.zarr")))


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_chunks_that_were_never_stored_have_the_fill_value(tmp_path, layout, store):
    x, chunk = make(tmp_path / "x.zarr", layout)
    x[20:, 20:] = 0
    chunk.unlink()
    np.testing.assert_array_equal(hdgemm.open(STORES[store](tmp_path / "x.zarr")).read(), x)
    (chunk.parent / "0").unlink()
    chunk.parent.rmdir()
    x[20:] = 0
    np.testing.assert_array_equal(hdgemm.open(STORES[store](tmp_path / "x.zarr")).read(), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_that_is_gone_has_no_elements(tmp_path, layout):
    make(tmp_path / "x.zarr", layout)
    with hdgemm.open(tmp_path / "x.zarr") as matrix:
        (tmp_path / "x.zarr").rename(tmp_path / "y.zarr")
        with pytest.raises(MatrixIOError, match="is missing"):
            matrix.read()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "plain"])
def test_a_chunk_longer_than_any_is_refused_before_it_is_read(tmp_path, layout):
    _, chunk = make(tmp_path / "x.zarr", layout)
    os.truncate(chunk, 1 << 42)
    with pytest.raises(MatrixIOError, match=f"has {1 << 42} bytes, and no chunk of this array"):
        hdgemm.open(tmp_path / "x.zarr").read()


@pytest.mark.parametrize("codec", [zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec(checksum=True),
                                   zarr.codecs.BloscCodec(), None])  # fmt: skip
@pytest.mark.parametrize("shards", [None, (64, 64)])
def test_the_longest_chunks_are_read(tmp_path, codec, shards):
    """Random bytes cannot be compressed, and a shard of chunks of one element is mostly index."""
    x = np.random.default_rng(0).integers(0, 256, (64, 64, 4), np.uint8).view("f4")[..., 0]
    x = np.nan_to_num(x)
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=x.shape, dtype="f4", shards=shards,
        chunks=(1, 1) if shards else (64, 64), compressors=codec,
    )  # fmt: skip
    array[:] = x
    np.testing.assert_array_equal(hdgemm.open(tmp_path / "x.zarr").read(), x)


CODECS = {
    "blosc": {"compressors": zarr.codecs.BloscCodec()},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
    "zstd, big-endian": {
        "compressors": zarr.codecs.ZstdCodec(),
        "serializer": zarr.codecs.BytesCodec(endian="big"),
    },
    "zstd, twice": {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.GzipCodec()]},
    "zstd, transposed": {
        "compressors": zarr.codecs.ZstdCodec(),
        "filters": zarr.codecs.TransposeCodec(order=(1, 0)),
    },
    "lz4, format 2": {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    "bz2": {"compressors": {"name": "numcodecs.bz2", "configuration": {"level": 1}}},
    "lzma, by filters": {
        "compressors": {
            "name": "numcodecs.lzma",
            "configuration": {
                "format": lzma.FORMAT_RAW,
                "filters": [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}],
            },
        }
    },
    "zlib, format 2, big-endian": {
        "zarr_format": 2,
        "compressors": numcodecs.Zlib(),
        "dtype": ">f8",
    },
    "bz2, format 2, by columns": {"zarr_format": 2, "compressors": numcodecs.BZ2(), "order": "F"},
    "blosc, format 2, a filter": {
        "zarr_format": 2,
        "compressors": numcodecs.Blosc(),
        "filters": numcodecs.Delta(dtype="f8"),
    },
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("chunks", [(7, 5), (23, 31), (40, 50)])
def test_rectangles_of_compressed_chunks(tmp_path, codec, chunks):
    x = np.random.default_rng(0).standard_normal((23, 31))
    layout = {"dtype": x.dtype, "fill_value": 2.5} | CODECS[codec]
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=chunks, **layout)
    array[:] = x
    if chunks == (7, 5):
        (tmp_path / "x.zarr" / array.metadata.encode_chunk_key((1, 2))).unlink()
        x[7:14, 10:15] = 2.5
    if "a filter" in codec:  # differences of floats are rounded
        x = np.asarray(array[:])
    for mode in ("r", "r+"):
        with hdgemm.open(tmp_path / "x.zarr", mode) as matrix:
            for top, left, high, wide in ((0, 0, 23, 31), (3, 4, 15, 20), (8, 11, 3, 2)):
                part = slice(top, top + high), slice(left, left + wide)
                np.testing.assert_array_equal(matrix[part].read(), x[part])


@pytest.mark.parametrize("kept", [10, 17, 1000, 100_000])
def test_a_truncated_blosc_chunk_is_an_error(tmp_path, kept):
    x = np.random.default_rng(0).standard_normal((300, 300))
    codec = zarr.codecs.BloscCodec(cname="lz4", shuffle="noshuffle")
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=x.shape, chunks=x.shape, dtype="f8", compressors=codec
    )
    array[:] = x
    os.truncate(tmp_path / "x.zarr" / array.metadata.encode_chunk_key((0, 0)), kept)
    with pytest.raises(MatrixIOError, match=r"cannot read rows .* bytes, and \d+ by its Blosc"):
        hdgemm.open(tmp_path / "x.zarr").read()


def test_threads_that_read_chunks_of_other_sizes_share_no_buffer(tmp_path):
    rng = np.random.default_rng(0)
    read = {}
    for side in (20, 33, 50):
        x = rng.standard_normal((100, 100))
        array = zarr.create_array(
            tmp_path / f"{side}.zarr", shape=x.shape, chunks=(side, side), dtype="f8",
            compressors=zarr.codecs.BloscCodec(),
        )  # fmt: skip
        array[:] = x
        read[hdgemm.open(tmp_path / f"{side}.zarr")] = x
    with ThreadPoolExecutor(6) as pool:
        for matrix, found in pool.map(lambda matrix: (matrix, matrix.read()), [*read] * 50):
            np.testing.assert_array_equal(found, read[matrix])
    assert 0 < len(_compressed_chunks._IDLE) <= 2
    read.clear()
    del matrix, array
    gc.collect()
    assert not _compressed_chunks._IDLE


def test_buffers_of_large_chunks_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(_compressed_chunks, "_KEPT_BYTES", 1000)
    gc.collect()
    array = zarr.create_array(tmp_path / "x.zarr", shape=(40, 40), chunks=(20, 20), dtype="f8")
    array[:] = 1
    with hdgemm.open(tmp_path / "x.zarr") as matrix:
        assert matrix.read().sum() == 1600
        assert not _compressed_chunks._IDLE


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", [b"x", b"\x00" * 100, b"\xff" * 100])
def test_a_compressed_chunk_of_other_bytes_is_an_error(tmp_path, codec, content):
    layout = {"dtype": "f8"} | CODECS[codec]
    array = zarr.create_array(tmp_path / "x.zarr", shape=(20, 20), chunks=(10, 10), **layout)
    array[:] = np.ones((20, 20))
    (tmp_path / "x.zarr" / array.metadata.encode_chunk_key((1, 0))).write_bytes(content)
    with pytest.raises(MatrixIOError, match=r"cannot read rows .* of .*x\.zarr"):
        hdgemm.open(tmp_path / "x.zarr").read()


@contextmanager
def traced():
    """Give a function that returns the most bytes that Python has held since the beginning."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


#: Whether the header of a chunk states its decoded size, of codecs that are decoded here.
STATES_ITS_SIZE = {
    "blosc": True,
    "gzip": False,
    "zstd, big-endian": True,
    "lz4, format 2": True,
    "bz2": False,
    "lzma, by filters": False,
    "zlib, format 2, big-endian": False,
}


@pytest.mark.parametrize("codec", STATES_ITS_SIZE)
@pytest.mark.parametrize("side", [9, 11, 1000])
def test_a_chunk_that_decompresses_to_another_size_is_refused(tmp_path, codec, side):
    """Before it takes the memory: 8 MB of ones are a chunk of a few kilobytes."""
    for name, extent in (("x", 10), ("y", side)):
        layout = {"dtype": "f8"} | CODECS[codec]
        array = zarr.create_array(
            tmp_path / f"{name}.zarr", shape=(2000, 20), chunks=(extent**2 // 20, 20), **layout
        )
        array[:] = np.ones(array.shape)
    key = array.metadata.encode_chunk_key((0, 0))
    shutil.copy(tmp_path / "y.zarr" / key, tmp_path / "x.zarr" / key)
    size = "more than 800" if side > 10 and not STATES_ITS_SIZE[codec] else 8 * (side**2 // 20 * 20)
    reason = f"{key}: it decompresses to {size} bytes, and a chunk of this array has 800"
    with hdgemm.open(tmp_path / "x.zarr") as matrix, traced() as peak:
        with pytest.raises(MatrixIOError, match=f"cannot read rows .*{reason}"):
            matrix.read()
        assert peak() < 4 << 20


@pytest.mark.parametrize("size", [16001, 1 << 36, 1 << 62, (1 << 64) - 3])
def test_the_size_that_a_frame_of_zstandard_states_is_in_the_error(tmp_path, size):
    x = np.ones((50, 40))
    array = zarr.create_array(tmp_path / "x.zarr", data=x, chunks=x.shape)
    chunk = tmp_path / "x.zarr" / array.metadata.encode_chunk_key((0, 0))
    one_block = b"\x03\x00\x00\x00"
    chunk.write_bytes(b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + one_block)
    with pytest.raises(MatrixIOError, match=f"{chunk}: it decompresses to {size} bytes.* 16000"):
        hdgemm.open(tmp_path / "x.zarr").read()


@pytest.mark.parametrize("size", [0, 15999, 1 << 31, (1 << 32) - 1])
def test_the_size_that_a_header_of_blosc_states_is_in_the_error(tmp_path, size):
    x = np.ones((50, 40))
    array = zarr.create_array(
        tmp_path / "x.zarr", data=x, chunks=x.shape, compressors=zarr.codecs.BloscCodec()
    )
    chunk = tmp_path / "x.zarr" / array.metadata.encode_chunk_key((0, 0))
    content = bytearray(chunk.read_bytes())
    content[4:8] = size.to_bytes(4, "little")
    chunk.write_bytes(content)
    with pytest.raises(MatrixIOError, match=f"{chunk}: it decompresses to {size} bytes.* 16000"):
        hdgemm.open(tmp_path / "x.zarr").read()


def frame_without_size(nbytes):
    """Return a frame of Zstandard that states no size, of blocks of zeros."""
    lengths = [1 << 17] * (nbytes >> 17) + [nbytes % (1 << 17)]
    blocks = b"".join(
        (int(at == len(lengths) - 1) | 1 << 1 | length << 3).to_bytes(3, "little") + b"\0"
        for at, length in enumerate(lengths)
    )
    return b"\x28\xb5\x2f\xfd\x00\x50" + blocks


def test_a_chunk_of_zstandard_may_have_several_frames_and_no_size(tmp_path):
    x = np.random.default_rng(0).standard_normal((50, 40))
    array = zarr.create_array(tmp_path / "x.zarr", data=x, chunks=x.shape)
    chunk = tmp_path / "x.zarr" / array.metadata.encode_chunk_key((0, 0))
    encode = numcodecs.Zstd(3).encode
    chunk.write_bytes(encode(x[:20].copy()) + encode(x[20:].copy()))
    np.testing.assert_array_equal(hdgemm.open(tmp_path / "x.zarr").read(), x)
    chunk.write_bytes(encode(x[:20].copy()) + frame_without_size(30 * 40 * 8))
    np.testing.assert_array_equal(hdgemm.open(tmp_path / "x.zarr").read()[20:], np.zeros((30, 40)))
    chunk.write_bytes(frame_without_size(x.nbytes))
    np.testing.assert_array_equal(hdgemm.open(tmp_path / "x.zarr").read(), np.zeros(x.shape))
    for content in (
        encode(x[:20].copy()) + encode(x[20:45].copy()),
        encode(x[:20].copy()) + encode(x),
        encode(x[:20].copy()) + frame_without_size(1 << 25),
        frame_without_size(x.nbytes - 8),
        frame_without_size(1 << 25),
    ):
        chunk.write_bytes(content)
        with hdgemm.open(tmp_path / "x.zarr") as matrix, traced() as peak:
            with pytest.raises(MatrixIOError, match=f"cannot read rows .*: {chunk}: "):
                matrix.read()
            assert peak() < 4 << 20


@pytest.mark.parametrize("name", ["zarr.json", "g/zarr.json", "g/C/zarr.json"])
@pytest.mark.parametrize("consolidated", [False, True])
def test_a_fifo_as_metadata_of_an_output_is_refused(tmp_path, name, consolidated):
    make(tmp_path / "x.zarr" / "g" / "C", "plain")
    zarr.create_group(tmp_path / "x.zarr").require_group("g")
    if consolidated:
        with pytest.warns(zarr.errors.ZarrUserWarning):
            zarr.consolidate_metadata(tmp_path / "x.zarr")
    (tmp_path / "x.zarr" / name).unlink()
    os.mkfifo(tmp_path / "x.zarr" / name)
    with pytest.raises(HdgemmError, match=r"FIFO|is no Zarr array"):
        hdgemm.matmul(np.eye(3), np.eye(3), out=f"{tmp_path}/x.zarr::g/C")
    assert not list(tmp_path.rglob("*.part"))


OPENED = {
    "file": lambda path, mode: zarr.open_array(f"file://{path}", mode=mode),
    "fsspec": lambda path, mode: zarr.open_array(
        zarr.storage.FsspecStore.from_url(f"file://{path}"), mode=mode
    ),
    "obstore": lambda path, mode: zarr.open_array(
        zarr.storage.ObjectStore(
            pytest.importorskip("obstore").store.LocalStore(prefix=str(path)),
        ),
        mode=mode,
    ),
    "path": hdgemm.open,
}


@pytest.mark.parametrize("layout", ["plain", "compressed"])
@pytest.mark.parametrize("left", OPENED)
@pytest.mark.parametrize("right", OPENED)
def test_one_array_in_several_stores_overlaps_itself(tmp_path, layout, left, right):
    x, _ = make(tmp_path / "x.zarr", layout)
    a, out = (
        OPENED[kind](tmp_path / "x.zarr", mode) for kind, mode in ((left, "r"), (right, "r+"))
    )
    with pytest.raises(InputError, match="out overlaps a"):
        hdgemm.matmul(a, x, out=out)


@pytest.mark.parametrize("layout", ["plain", "compressed"])
def test_arrays_that_share_chunk_files_overlap(tmp_path, layout):
    x, chunk = make(tmp_path / "x.zarr", layout)
    shutil.copytree(tmp_path / "x.zarr", tmp_path / "y.zarr")
    out = hdgemm.open(tmp_path / "y.zarr", "r+")
    hdgemm.matmul(tmp_path / "x.zarr", x, out=out)
    other = tmp_path / "y.zarr" / chunk.relative_to(tmp_path / "x.zarr")
    other.unlink()
    other.hardlink_to(chunk)
    with pytest.raises(InputError, match="out overlaps a"):
        hdgemm.matmul(tmp_path / "x.zarr", x, out=out)
    other.unlink()
    other.symlink_to(chunk)
    with pytest.raises(InputError, match="out overlaps b"):
        hdgemm.matmul(x, tmp_path / "x.zarr", out=out)


def test_a_raw_file_that_is_a_chunk_overlaps_the_array(tmp_path):
    _, chunk = make(tmp_path / "x.zarr", "plain")
    raw = f"{chunk}::20x20:float64"
    mapped = np.memmap(chunk, "f8", "r+", shape=(20, 20))
    wide = np.ones((40, 20))
    for a in (raw, mapped):
        with pytest.raises(InputError, match="out overlaps b"):
            hdgemm.matmul(wide, a, out=hdgemm.open(tmp_path / "x.zarr", "r+")[:, :20])
    for out, words in ((raw, "among the files of the store"), (mapped, "out overlaps b")):
        with pytest.raises(InputError, match=words):
            hdgemm.matmul(wide.T, hdgemm.open(tmp_path / "x.zarr")[:, :20], out=out)


def test_groups_of_a_discarded_array_stay_where_another_run_uses_them(tmp_path, monkeypatch):
    store = tmp_path / "s.zarr"
    listed, begun = Path.iterdir, []
    first = create_matrix(f"{store}::g/A", (4, 4), "f8")

    def begin_after(folder):
        names = list(listed(folder))
        if names == [store / "g" / "zarr.json"] and len(begun) < 2:
            begun.append(folder)
            if len(begun) == 2:  # listed once when the draft was removed, and then to be removed
                create_matrix(f"{store}::g/B", (4, 4), "f8").publish()
        return iter(names)

    monkeypatch.setattr(Path, "iterdir", begin_after)
    first.discard()
    np.testing.assert_array_equal(hdgemm.open(f"{store}::g/B"), np.zeros((4, 4)))
    assert list(zarr.open_group(store, mode="r")["g"].array_keys()) == ["B"]


def test_groups_that_a_discarded_array_has_removed_are_made_again(tmp_path, monkeypatch):
    store = tmp_path / "s.zarr"
    first = create_matrix(f"{store}::A", (4, 4), "f8")
    choose = zarr_draft._zarr_format

    def discard_before(*arguments):
        first.discard()
        return choose(*arguments)

    monkeypatch.setattr(zarr_draft, "_zarr_format", discard_before)
    create_matrix(f"{store}::B", (4, 4), "f8").publish()
    assert list(zarr.open_group(store, mode="r").array_keys()) == ["B"]


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="this process ignores SIGINT"
)
@pytest.mark.parametrize("item", ["", "group/c"])
def test_an_interrupted_creation_leaves_nothing(tmp_path, monkeypatch, item):
    # zarr's own thread goes on: after a fifth of the interrupts it made the folder again.
    here, store, held = threading.get_ident(), zarr.storage.LocalStore, []
    real = store.set

    async def interrupt_and_set(self, key, value, *args):
        held.append(key)
        signal.pthread_kill(here, signal.SIGINT)
        await asyncio.sleep(0.2)
        await real(self, key, value, *args)

    monkeypatch.setattr(store, "set", interrupt_and_set)
    with pytest.raises(KeyboardInterrupt):
        zarr_draft.create_zarr(tmp_path / "c.zarr", item, (5, 5), "f8")
    monkeypatch.undo()
    time.sleep(0.5)
    assert held
    assert list(tmp_path.iterdir()) == []
