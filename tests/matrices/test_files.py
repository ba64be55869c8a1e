"""Rectangles of files: every offset, phase, order and dtype; neighbours, faults, large offsets."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hdgemm.errors import InputError, MatrixIOError
from hdgemm.matrices import draft, filematrix, files, transfer
from hdgemm.matrices.filematrix import FileMatrix
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.npy import create_npy, open_npy
from hdgemm.matrices.transfer import BOUNCE_SIZE, Pool, address, aligned_bytes, disk_pool

DTYPES = ("<f4", ">f4", "<f8", ">f8", "<c16")


def numbers(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def stored(folder, x, offset=0, *, direct=True, gap=0):
    """`x` in a file, `gap` bytes between its rows."""
    path = Path(folder) / "x.raw"
    rows = np.zeros((x.shape[0], x.shape[1] * x.itemsize + gap), np.uint8)
    rows[:, : x.shape[1] * x.itemsize] = np.ascontiguousarray(x).view(np.uint8)
    path.write_bytes(bytes(offset) + rows.tobytes())
    file = BlockFile(path, writable=True, direct=direct)
    return FileMatrix(file, x.shape, x.dtype, offset, rows.shape[1])


def whole(matrix):
    out = np.empty(matrix.shape, matrix.dtype.newbyteorder("="))
    matrix.read(0, 0, out)
    return out


@pytest.fixture
def small_requests(monkeypatch):
    """Sizes at which a few kilobytes meet every path: interiors, edges, bands, cuts, bounces."""
    monkeypatch.setattr(filematrix, "REQUEST", 16 << 10)
    monkeypatch.setattr(filematrix, "_BOUNCE_SPAN", 12 << 10)
    monkeypatch.setattr(filematrix, "SHORT", 5 << 10)
    monkeypatch.setattr(files, "SHORT", 5 << 10)
    monkeypatch.setattr(filematrix, "GAP", 1 << 10)
    monkeypatch.setattr(filematrix, "_GROUP", 3 << 10)


@st.composite
def rectangles(draw):
    rows, cols = draw(st.integers(1, 40)), draw(st.integers(1, 3000))
    height, width = draw(st.integers(0, rows)), draw(st.one_of(st.just(cols), st.integers(0, cols)))
    row, col = draw(st.integers(0, rows - height)), draw(st.integers(0, cols - width))
    return (rows, cols), (row, col, height, width)


def memory_for(draw_phase, height, ld, width, dtype):
    """A destination with unit stride in rows, `ld` elements apart, at any phase."""
    dtype, ld = np.dtype(dtype), max(1, ld)
    flat = aligned_bytes(max(1, height) * ld * dtype.itemsize, draw_phase * dtype.itemsize)
    return flat.view(dtype).reshape(-1, ld)[:height, :width]


arguments = given(
    rectangles(),
    st.sampled_from(DTYPES),
    st.sampled_from((None, "f4", "f8", "c8")),
    st.one_of(st.sampled_from((0, 128, 4096)), st.integers(0, 9000)),
    st.integers(0, 511),
    st.integers(0, 3),
    st.sampled_from((0, 0, 8, 200, 3000)),
    st.booleans(),
)


@pytest.mark.usefixtures("small_requests")
class TestRectangles:
    @settings(deadline=None, max_examples=300)
    @arguments
    def test_read(self, rectangle, dtype, target, offset, phase, more, gap, direct):
        shape, (row, col, height, width) = rectangle
        x = numbers(shape, dtype)
        target = np.dtype(target or x.dtype.newbyteorder("="))
        if not np.can_cast(x.dtype, target, "same_kind"):
            target = np.dtype(np.complex128)
        with tempfile.TemporaryDirectory() as folder:
            matrix = stored(folder, x, offset, direct=direct, gap=gap)
            around = memory_for(phase, height, width + more + 1, width + more + 1, target)
            around[:] = 7
            matrix.read(row, col, around[:, :width])
            matrix.close()
        wanted = x[row : row + height, col : col + width].astype(target)
        np.testing.assert_array_equal(around[:, :width], wanted)
        assert (around[:, width:] == 7).all()

    @settings(deadline=None, max_examples=300)
    @arguments
    def test_write(self, rectangle, dtype, source, offset, phase, more, gap, direct):
        shape, (row, col, height, width) = rectangle
        x = numbers(shape, dtype)
        source = np.dtype(source or x.dtype.newbyteorder("="))
        if not np.can_cast(source, x.dtype, "same_kind"):
            source = np.dtype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            matrix = stored(folder, x, offset, direct=direct, gap=gap)
            tile = memory_for(phase, height, width + more, width, source)
            tile[:] = numbers((height, width), "f4", 1)
            matrix.write(row, col, tile)
            seen = whole(matrix)
            matrix.flush()
            matrix.close()
            raw = (Path(folder) / "x.raw").read_bytes()
        x[row : row + height, col : col + width] = tile
        np.testing.assert_array_equal(seen, x)
        assert len(raw) == offset + x.nbytes + gap * len(x)
        assert not any(raw[:offset])


@pytest.mark.parametrize("direct", [True, False])
def test_large_rectangles_with_the_real_sizes(tmp_path, direct):
    x = numbers((300, 12_000), "f8")
    matrix = stored(tmp_path, x, 77, direct=direct)
    np.testing.assert_array_equal(whole(matrix), x)
    y = numbers((299, 11_990), "f4", 1)
    matrix.write(1, 3, y)
    x[1:, 3:-7] = y
    matrix.write(5, 0, x[200:295])
    x[5:100] = x[200:295]
    np.testing.assert_array_equal(whole(matrix), x)
    matrix.close()


def test_phase_is_the_file_offset():
    with tempfile.TemporaryDirectory() as folder:
        matrix = stored(folder, numbers((20, 700), "f8"), 128)
        assert matrix.phase(0, 0) == 128
        assert matrix.phase(3, 5) == (128 + 3 * 5600 + 40) % 4096
        matrix.close()


def test_memory_of_the_right_phase_is_read_in_place(tmp_path, monkeypatch):
    """One copy less is the point of `phase`: nothing may go through a bounce buffer."""
    x = numbers((64, 8192), "f8")
    matrix = stored(tmp_path, x, 128)
    out = aligned_bytes(x[3:].nbytes, matrix.phase(3, 0)).view("f8").reshape(61, 8192)
    assert matrix.file.direct, "this test needs a file system with direct I/O"
    monkeypatch.setattr(FileMatrix, "_read_band", None)
    matrix.read(3, 0, out)
    np.testing.assert_array_equal(out, x[3:])
    matrix.close()


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_neighbours_written_at_once_keep_each_others_edges(tmp_path, kind):
    """Odd sizes, so that most blocks of the file belong to two tiles."""
    shape = (301, 9973)
    x = numbers(shape, "f8")
    rounds = 3
    with create_npy(tmp_path / "c.npy", shape, "f8") as draft, ThreadPoolExecutor(6) as callers:
        matrix = draft.matrix
        for number in range(rounds):
            x += 1
            step = (7, 23)[number % 2] if kind == "rows" else (333, 3331)[number % 2]
            cuts = [
                (slice(i, i + step), slice(None))
                if kind == "rows"
                else (slice(None), slice(i, i + step))
                for i in range(0, shape[kind != "rows"], step)
            ]
            starts = [(cut[0].start or 0, cut[1].start or 0) for cut in cuts]
            tiles = [np.ascontiguousarray(x[cut]) for cut in cuts]
            list(callers.map(lambda at, tile: matrix.write(*at, tile), starts, tiles))
            np.testing.assert_array_equal(whole(matrix), x)
        draft.publish()
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), x)


def test_direct_and_cached_views_agree(tmp_path):
    """A reader through the page cache sees direct writes at once, and the other way round."""
    x = numbers((257, 4099), "f8")
    matrix = stored(tmp_path, x, 128)
    mapped = np.memmap(matrix.path, "f8", "r+", 128, x.shape)
    for value in range(1, 6):
        assert mapped.sum() == pytest.approx(x.sum())
        x[value::3] += value
        matrix.write(0, 0, x)
        np.testing.assert_array_equal(mapped, x)
        mapped[::value] *= 2
        x[::value] *= 2
        np.testing.assert_array_equal(whole(matrix), x)
    matrix.close()


def test_several_readers_and_writers_of_one_matrix(tmp_path):
    x = numbers((400, 5001), "f8")
    matrix = stored(tmp_path, x, 64)

    def reread(start):
        out = np.empty((50, 5001))
        for _ in range(5):
            matrix.read(start, 0, out)
            np.testing.assert_array_equal(out, x[start : start + 50])
            matrix.write(start, 0, out)

    with ThreadPoolExecutor(8) as callers:
        list(callers.map(reread, range(0, 400, 50)))
    np.testing.assert_array_equal(whole(matrix), x)
    matrix.close()


def test_a_rectangle_beyond_4_gib(tmp_path):
    """64-bit offsets all the way, in a sparse file."""
    rows, cols = 70_001, 8_193
    path = tmp_path / "large.raw"
    path.touch()
    os.truncate(path, 100 + rows * cols * 8)
    matrix = FileMatrix(BlockFile(path, writable=True), (rows, cols), np.dtype("f8"), 100)
    assert matrix.end > 1 << 32
    for row, col, shape in ((69_900, 0, (101, cols)), (65_540, 77, (90, 501)), (0, 0, (2, 9))):
        tile = numbers(shape, "f8", row)
        matrix.write(row, col, tile)
        out = np.empty(shape)
        matrix.read(row, col, out)
        np.testing.assert_array_equal(out, tile)
    row, col = 65_540, 77
    mapped = np.memmap(path, "f8", "r", 100, (rows, cols))
    np.testing.assert_array_equal(
        mapped[row : row + 90, col : col + 501], numbers((90, 501), "f8", row)
    )
    assert not mapped[row - 1].any()
    matrix.close()
    path.unlink()


@pytest.mark.parametrize(("row", "col"), [(-1, 0), (0, -1), (5, 0), (0, 5)])
def test_a_rectangle_outside_is_refused(tmp_path, row, col):
    matrix = stored(tmp_path, numbers((8, 8), "f8"))
    with pytest.raises(InputError, match="outside the 8×8"):
        matrix.read(row, col, np.empty((4, 4)))
    with pytest.raises(InputError, match="outside the 8×8"):
        matrix.write(row, col, np.empty((4, 4)))
    matrix.close()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("kept", [0, 4095, 700_000, 6_399_999])
def test_a_file_that_shrinks_during_the_run(tmp_path, direct, kept):
    matrix = stored(tmp_path, numbers((800, 1000), "f8"), direct=direct)
    os.truncate(matrix.path, kept)
    for out in (np.empty((800, 1000)), np.empty((800, 1000), "f4"), np.empty((800, 900))):
        with pytest.raises(MatrixIOError, match=f"ends at byte {kept}") as caught:
            matrix.read(0, 1000 - out.shape[1], out)
        assert caught.value.path == str(matrix.path)
        assert caught.value.offset + caught.value.length > kept
    with pytest.raises(MatrixIOError, match="cut short"):
        matrix.flush()
    matrix.close()


def limited(script, folder):
    """Run a script in a process of its own, with a file size limit of 1 MiB."""
    begin = f"""
        import resource, numpy as np
        from pathlib import Path
        from hdgemm.errors import MatrixIOError
        from hdgemm.matrices.filematrix import FileMatrix
        from hdgemm.matrices.files import BlockFile
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        folder = Path({str(folder)!r})
    """
    code = textwrap.dedent(begin) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_size_limit_names_file_and_offset(tmp_path, direct):
    (tmp_path / "c.raw").touch()
    os.truncate(tmp_path / "c.raw", 8_000_000)
    said = limited(
        f"""
        file = BlockFile(folder / "c.raw", writable=True, direct={direct})
        matrix = FileMatrix(file, (1000, 1000), np.dtype("f8"))
        for tile in (np.ones((1000, 1000)), np.ones((1000, 900)), np.ones((999, 1000), "f4")):
            try:
                matrix.write(0, 0, tile)
            except MatrixIOError as error:
                print(error, error.offset, error.length)
        """,
        tmp_path,
    )
    assert len(said.splitlines()) == 3
    assert said.count("c.raw: File too large") == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs takes root")
def test_a_full_disk(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=False
    )
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        with pytest.raises(MatrixIOError, match="No space left") as caught:
            create_npy(tmp_path / "c.npy", (1000, 1000), "f8")
        assert caught.value.missing > 5_000_000
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "c.raw").touch()
        os.truncate(tmp_path / "c.raw", 8_000_000)
        file = BlockFile(tmp_path / "c.raw", writable=True)
        matrix = FileMatrix(file, (1000, 1000), np.dtype("f8"))
        with pytest.raises(MatrixIOError, match="bytes are free there: make room") as caught:
            matrix.write(0, 0, np.ones((1000, 1000)))
        assert caught.value.path.endswith("c.raw")
        matrix.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_system_without_direct_requests(tmp_path, monkeypatch):
    """EINVAL at the first request, not at open, is how some say it."""

    def refuse_direct(call):
        def guarded(fd, buffers, offset):
            if fd == matrix.file._direct_fd:
                raise OSError(errno.EINVAL, "Invalid argument")
            return call(fd, buffers, offset)

        return guarded

    x = numbers((90, 9000), "f8")
    matrix = stored(tmp_path, x, 10)
    monkeypatch.setattr(os, "preadv", refuse_direct(os.preadv))
    monkeypatch.setattr(os, "pwritev", refuse_direct(os.pwritev))
    np.testing.assert_array_equal(whole(matrix), x)
    matrix.write(0, 0, x[::-1])
    np.testing.assert_array_equal(whole(matrix), x[::-1])
    matrix.close()


def test_short_requests_are_continued(tmp_path, monkeypatch):
    def halved(call):
        return lambda fd, buffers, at: call(fd, [buffers[0][: max(1, len(buffers[0]) // 2)]], at)

    x = numbers((50, 9000), "f8")
    matrix = stored(tmp_path, x, 10)
    monkeypatch.setattr(os, "preadv", halved(os.preadv))
    monkeypatch.setattr(os, "pwritev", halved(os.pwritev))
    matrix.write(0, 0, x[::-1])
    np.testing.assert_array_equal(whole(matrix), x[::-1])
    matrix.close()


def strided_rows(x):
    """`x` in memory whose rows are 4096 bytes apart, which hold sevens."""
    width = x.shape[1] + 4096 // x.itemsize
    around = memory_for(0, len(x), width, width, x.dtype)
    around[:] = 7
    around[:, : x.shape[1]] = x
    return around, around[:, : x.shape[1]]


@pytest.mark.parametrize("moved", [None, 0, 4095, 4096, 3_000_000])
def test_rows_of_whole_blocks_are_scattered(tmp_path, monkeypatch, moved):
    """A few requests for 2,500 rows; each may move a part only, or nothing, where it is refused."""
    requests = []

    def guarded(call, wanted):
        def request(fd, buffers, offset):
            if fd != matrix.file._direct_fd:
                return call(fd, buffers, offset)
            requests.append(len(buffers))
            if moved == 0:
                raise OSError(errno.EINVAL, "Invalid argument")
            if moved is None or call is not wanted:
                return call(fd, buffers, offset)
            parts = []
            for buffer in buffers:
                parts.append(buffer[: moved - sum(map(len, parts))])
            return call(matrix.file.fileno(), parts, offset)

        return request

    preadv, pwritev = os.preadv, os.pwritev
    x = numbers((2500, 512), "f8")
    matrix = stored(tmp_path, x, 4096)
    for wanted in (preadv, pwritev):
        monkeypatch.setattr(os, "preadv", guarded(preadv, wanted))
        monkeypatch.setattr(os, "pwritev", guarded(pwritev, wanted))
        around, tile = strided_rows(np.zeros_like(x))
        matrix.read(0, 0, tile)
        np.testing.assert_array_equal(tile, x)
        assert (around[:, 512:] == 7).all()
        x = numbers(x.shape, x.dtype, 1)
        matrix.write(0, 0, strided_rows(x)[1])
        np.testing.assert_array_equal(np.fromfile(matrix.path, offset=4096).reshape(x.shape), x)
    assert sorted(requests) == [833] * 8 + [834] * 4
    matrix.close()


def test_scattered_rows_of_a_file_that_was_cut_short(tmp_path):
    matrix = stored(tmp_path, numbers((900, 512), "f8"))
    os.truncate(matrix.path, 700 * 4096 + 100)
    with pytest.raises(MatrixIOError, match=f"ends at byte {700 * 4096 + 100}"):
        matrix.read(0, 0, strided_rows(np.zeros((900, 512)))[1])
    matrix.close()


def test_a_read_error_of_the_device_names_its_place(tmp_path, monkeypatch):
    matrix = stored(tmp_path, numbers((400, 9000), "f8"))
    preadv = os.preadv

    def broken(fd, buffers, offset):
        if offset >= 16 << 20:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(MatrixIOError, match="Input/output error") as caught:
        whole(matrix)
    assert caught.value.offset >= 16 << 20
    assert isinstance(caught.value.__cause__, OSError)
    matrix.close()


def test_the_pool_is_fair_to_small_transfers():
    """A small transfer begun after a large one ends before it, whatever the clock says."""
    pool = Pool(1, "test")
    order = []
    gate, begun = threading.Event(), threading.Event()

    def first(_):
        begun.set()
        gate.wait()

    large = [first, *(lambda _, i=i: order.append(i) for i in range(10))]
    running = threading.Thread(target=pool.run, args=(large,))
    running.start()
    begun.wait()
    small = threading.Thread(target=pool.run, args=([lambda _: order.append("small")],))
    small.start()
    while len(pool._transfers) < 2:
        pass
    gate.set()
    running.join()
    small.join()
    assert order.index("small") <= 1
    assert [x for x in order if x != "small"] == list(range(10))


def test_the_first_error_of_a_transfer_drops_the_rest():
    done = itertools.count()

    def fail(_):
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        Pool(1, "test").run([fail, *(lambda _: next(done) for _ in range(100))])
    assert next(done) == 0


def test_an_interrupted_caller_gets_its_memory_back():
    """When `run` raises, no thread writes into the caller's arrays any more."""
    begun, ended = itertools.count(), []

    def piece(_):
        if next(begun) == 0:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.05)
        ended.append(True)

    pool = Pool(2, "test")
    with pytest.raises(KeyboardInterrupt):
        pool.run([piece] * 1000)
    assert len(ended) == next(begun) < 1000
    pool.run([piece])


def resident(path):
    """Bytes of a file that are in the page cache."""
    mapped = np.memmap(path, np.uint8, "r")
    pages = np.zeros(-(-mapped.size // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.c_void_p(address(mapped))
    if libc.mincore(start, ctypes.c_size_t(mapped.size), ctypes.c_void_p(address(pages))):
        raise OSError(ctypes.get_errno(), "mincore")
    return int((pages & 1).sum()) * mmap.PAGESIZE


@pytest.mark.parametrize("direct", [True, False])
def test_data_used_once_does_not_stay_in_the_page_cache(tmp_path, direct):
    matrix = stored(tmp_path, numbers((500, 2001), "f8"), 128, direct=direct)
    matrix.file.flush()
    os.sync()
    fd = os.open(matrix.path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    try:
        before = resident(matrix.path)
    except OSError:
        pytest.skip("this file system does not say what is in the page cache")
    if before > 64 << 10:
        pytest.skip(f"this file system keeps {before} bytes in the page cache whatever one asks")
    x = whole(matrix)
    assert resident(matrix.path) <= 64 << 10
    matrix.write(0, 0, x)
    matrix.flush()
    assert resident(matrix.path) <= 64 << 10
    matrix.close()


def test_bounce_memory_is_bounded():
    sizes = set()
    pool = disk_pool()
    pool.run([lambda bounce: sizes.add(bounce.memory.nbytes)] * 50)
    assert sizes == {BOUNCE_SIZE}
    assert pool.threads * BOUNCE_SIZE == transfer.BOUNCE_BYTES
    assert address(aligned_bytes(10, 24)) % 4096 == 24


@pytest.mark.parametrize("target", ["f4", "f8"])
@pytest.mark.parametrize("width", [2003, 1999, 700])
def test_moving_holds_no_more_than_the_bounce_buffers(tmp_path, target, width):
    """Bounded whatever the rectangle: the planner counts these bytes and no others."""
    x = numbers((2000, 2003), "f8")
    matrix = stored(tmp_path, x, 8)
    part = np.ones((1999, width), target)
    tracemalloc.start()
    try:
        matrix.read(1, 2003 - width, part)
        matrix.write(0, 0, part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < transfer.BOUNCE_BYTES + (1 << 20) < part.nbytes + x.nbytes
    matrix.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_its_own_threads(tmp_path):
    x = numbers((40, 900), "f8")
    np.save(tmp_path / "x.npy", x)
    matrix, _ = open_npy(tmp_path / "x.npy")
    whole(matrix)
    child = os.fork()
    if child == 0:
        os._exit(0 if (whole(matrix) == x).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    matrix.close()


def test_a_replaced_file_is_freed_after_its_successor_has_the_name(tmp_path, monkeypatch):
    path, freed, closed = tmp_path / "A.npy", threading.Event(), []
    np.save(path, np.zeros((3, 3)))

    class Held:
        close = staticmethod(lambda fd: (freed.wait(600), closed.append(fd), os.close(fd)))

        def __getattr__(self, name):
            return getattr(os, name)

    monkeypatch.setattr(draft, "os", Held())
    with create_npy(path, (3, 3), np.dtype("float64")) as made:
        made.matrix.write(0, 0, np.ones((3, 3)))
        made.publish()
    assert np.load(path).sum() == 9
    assert not closed
    threading.Timer(0.05, freed.set).start()
    draft.require_space(path, 1)  # waits for the space of the old file
    assert len(closed) == 1


def test_without_a_thread_a_replaced_file_is_freed_at_once(tmp_path, monkeypatch):
    path = tmp_path / "A.npy"
    np.save(path, np.zeros((3, 3)))

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    before = len(list(Path("/proc/self/fd").iterdir()))
    with create_npy(path, (3, 3), np.dtype("float64")) as made:
        made.matrix.write(0, 0, np.ones((3, 3)))
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        made.publish()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert np.load(path).sum() == 9


def test_a_thread_frees_the_file_of_a_draft_that_is_discarded(tmp_path, monkeypatch):
    hold, freed, close = threading.Event(), [], os.close

    def held_close(fd):
        if threading.current_thread().name == "hdgemm-free":
            freed.append(os.fstat(fd).st_size)
            assert hold.wait(60)
        close(fd)

    monkeypatch.setattr(os, "close", held_close)
    create_npy(tmp_path / "C.npy", (100, 100), "f8").discard()
    assert not list(tmp_path.iterdir())
    hold.set()
    draft.wait_for_freed_space()
    assert freed == [4096 + 80_000]


def test_a_file_whose_constructor_was_interrupted_is_closed():
    BlockFile.__new__(BlockFile).close()
