"""Compressed chunks: decoded exactly as often as the plan's loads touch them."""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given, settings, strategies as st
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import hdgemm
from hdgemm import linalg
from hdgemm.machine.rates import Machine
from hdgemm.matrices._rectangles import RectangleMatrix
from hdgemm.matrices.operands import open_operand
from hdgemm.pipeline.plan import OperandSpec, Problem
from hdgemm.pipeline.slots import pieces
from hdgemm.pipeline.tiles import Rect
from hdgemm.planning._storage_chunks import aligned, chunk_along, file_requests, moved_area
from hdgemm.planning._tile_costs import moved_ratio
from hdgemm.planning.shapes import Shape, Shapes
from hdgemm.run import engine, session


class CountingStore(WrapperStore):
    """Counts how often each chunk is taken from a Zarr store; each time it is decompressed."""

    def __init__(self, store):
        super().__init__(store)
        self.counts = Counter()

    async def get(self, key, *rest, **more):
        parts = key.split("/")
        if parts[-3:-2] == ["c"]:
            self.counts[int(parts[-2]), int(parts[-1])] += 1
        return await super().get(key, *rest, **more)


class CountingDataset:
    """An h5py dataset, counting the chunks that each access to it must decompress."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.shape, self.dtype, self.chunks = dataset.shape, dataset.dtype, dataset.chunks
        self.counts = Counter()

    def __getitem__(self, key):
        rows, cols = key
        rect = Rect(rows.start, cols.start, rows.stop - rows.start, cols.stop - cols.start)
        self.counts.update(touched(rect, self.chunks))
        return self.dataset[key]


def touched(rect, chunk):
    """Return the indices of the chunks that a stored rectangle has elements of."""
    spans = [
        range(first // step, -(-(first + extent) // step))
        for first, extent, step in zip(rect[:2], rect[2:], chunk, strict=True)
    ]
    return itertools.product(*spans)


def expected(plan, operand):
    """Count for each chunk the loads whose tile has elements of it."""
    spec = plan.problem.spec(operand)
    counts = Counter()
    for load in plan.course.loads():
        if load.operand == operand:
            r = load.rect
            stored = Rect(r.col, r.row, r.cols, r.rows) if spec.trans else r
            counts.update(touched(stored, spec.chunk))
    return counts


def assert_close(c, a, b):
    """Hold a product of some hundred in k against BLAS's own, in units of n·eps."""
    bound = 4 * a.shape[1] * np.finfo(float).eps * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(c - a @ b) <= bound)


@pytest.fixture
def plans(monkeypatch):
    """The plans that were run; they are made for the same rates on every machine."""
    seen = []
    monkeypatch.setattr(session, "machine_for", lambda *_, **__: Machine(host_bytes=1 << 30))

    def run_plan(plan, *rest, run=engine.run_plan, **more):
        seen.append(plan)
        return run(plan, *rest, **more)

    monkeypatch.setattr(engine, "run_plan", run_plan)
    return seen


def stored(kind, path, x, chunk):
    """Keep a matrix compressed; return what to multiply, and what counts."""
    if kind == "hdf5":
        file = h5py.File(path, "w")
        made = file.create_dataset("x", data=x, chunks=chunk, compression="gzip", shuffle=True)
        counting = CountingDataset(made)
        return counting, counting
    store = CountingStore(MemoryStore() if kind == "memory" else LocalStore(path))
    array = zarr.create_array(store=store, shape=x.shape, chunks=chunk, dtype=x.dtype)
    array[:] = x
    store.counts.clear()
    return array, store


#: m, n, k; chunks of A and B; the limit; whether every tile can be cut at chunks.
CASES = {
    "several chunks a tile": ((600, 500, 640), (64, 64), (64, 64), "3.6MB", True),
    "chunks that go together": ((600, 500, 640), (96, 64), (128, 96), "4.7MB", True),
    "bands of whole rows": ((600, 500, 640), (16, 640), (16, 500), "3.6MB", False),
    "chunks larger than tiles": ((600, 500, 640), (512, 512), (300, 300), "1.5MB", False),
    "one chunk": ((600, 500, 640), (600, 640), (640, 500), "1.5MB", False),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kind", "trans"), [("hdf5", 1), ("zarr", 0)])
def test_no_chunk_is_decoded_more_often_than_the_plan_says(tmp_path, plans, kind, case, trans):
    (m, n, k), a_chunk, b_chunk, memory, exact = CASES[case]
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    left, a_store = stored(kind, tmp_path / "a", np.ascontiguousarray(a.T) if trans else a,
                           a_chunk[::-1] if trans else a_chunk)  # fmt: skip
    right, b_store = stored(kind, tmp_path / "b", b, b_chunk)
    options = hdgemm.Options(devices="host", host_memory=memory)
    out = np.empty((m, n))
    report = hdgemm.multiply(left, right, trans_a=trans, out=out, options=options)
    assert_close(out, a, b)
    assert report.moved_bytes == report.planned_bytes
    [plan] = plans
    assert not plan.in_place
    for operand, store, chunk in (("A", a_store, a_chunk), ("B", b_store, b_chunk)):
        says = expected(plan, operand)
        assert all(store.counts[place] <= says[place] for place in says)
        assert store.counts.keys() == says.keys()
        if exact:
            assert store.counts == says
            # Each chunk is in one tile, so that this is as often as that tile is loaded.
            loads = Counter(load.rect for load in plan.course.loads() if load.operand == operand)
            assert sum(says.values()) == sum(
                times * len(list(touched(rect, chunk))) for rect, times in loads.items()
            )
            assert len(says) == sum(len(list(touched(rect, chunk))) for rect in loads)


@pytest.mark.parametrize("kind", ["hdf5", "memory"])
def test_a_forced_tile_across_chunks_decodes_each_once_a_load(tmp_path, plans, kind):
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((90, 80)), rng.standard_normal((80, 70))
    left, a_store = stored(kind, tmp_path / "a", a, (16, 16))
    right, b_store = stored(kind, tmp_path / "b", b, (16, 16))
    options = hdgemm.Options(devices="host", tile=(30, 25, 20))
    hdgemm.multiply(left, right, out=np.empty((90, 70)), options=options)
    assert a_store.counts == expected(plans[0], "A")
    assert b_store.counts == expected(plans[0], "B")


def test_a_compressed_c_is_written_once_a_chunk(tmp_path, plans):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((500, 300)), rng.standard_normal((300, 420))

    class Sets(CountingStore):
        async def set(self, key, *rest, **more):
            self.counts[key] += 1
            await super().set(key, *rest, **more)

    store = Sets(MemoryStore())
    c = zarr.create_array(store=store, shape=(500, 420), chunks=(64, 64), dtype="f8")
    store.counts.clear()
    options = hdgemm.Options(devices="host", host_memory="1.5MB")
    hdgemm.multiply(a, b, out=c, options=options)
    assert len(plans[0].units) > 1
    assert set(store.counts.values()) == {1}
    assert len(store.counts) == 8 * 7
    assert_close(c[:], a, b)


@pytest.mark.parametrize("layout", [{"shards": (20, 20), "chunks": (10, 10)}, {"chunks": (20, 20)}])
@pytest.mark.parametrize("compressed", [True, False])
def test_an_emptied_chunk_or_shard_is_an_error(tmp_path, layout, compressed):
    how = {} if compressed else {"compressors": None}
    array = zarr.create_array(tmp_path / "E.zarr", shape=(40, 40), dtype="f8", **layout, **how)
    array[:] = 1
    (tmp_path / "E.zarr" / "c" / "1" / "1").write_bytes(b"")
    with pytest.raises(hdgemm.MatrixIOError, match=r"E\.zarr/c/1/1"):
        np.asarray(hdgemm.open(tmp_path / "E.zarr"))
    np.asarray(hdgemm.open(tmp_path / "E.zarr")[:20, :20])


def test_a_shard_is_read_by_its_chunks(tmp_path):
    x = np.random.default_rng(4).standard_normal((64, 64))
    array = zarr.create_array(
        tmp_path / "s.zarr", shape=x.shape, dtype="f8", chunks=(8, 8), shards=(32, 32)
    )
    array[:] = x
    assert open_operand(array).matrix.chunk == (8, 8)
    assert open_operand(array, writable=True).matrix.chunk == (32, 32)


@settings(deadline=None, max_examples=300)
@given(
    st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(1, 60)] * 2),
    st.one_of(st.none(), st.tuples(*[st.integers(1, 30)] * 2)),
    st.integers(1, 4000),
    st.booleans(),
)
def test_pieces_are_whole_small_and_cut_no_chunk_needlessly(rect, chunk, most, trans):
    tile = Rect(*rect)
    parts = pieces(tile, trans=trans, itemsize=8, most=most, chunk=chunk)
    cells = Counter()
    for part in parts:
        assert tile.covers(part)
        cells.update(itertools.product(range(part.row, part.row + part.rows),
                                       range(part.col, part.col + part.cols)))  # fmt: skip
        high = part.cols if trans else part.rows
        assert part.rows * part.cols * 8 <= most or high == 1
    assert len(cells) == tile.rows * tile.cols
    assert set(cells.values()) <= {1}
    if chunk is None:
        return
    turned = [Rect(p.col, p.row, p.cols, p.rows) if trans else p for p in parts]
    # The pieces of one chunk follow one another, so that one kept chunk is enough.
    order = [place for part in turned for place in sorted(set(touched(part, chunk)))]
    grouped = [place for place, _ in itertools.groupby(order)]
    assert len(grouped) == len(set(grouped))


@given(st.integers(1, 5000), st.integers(1, 3000))
def test_aligned_extents_are_multiples_or_equal_parts(size, chunk):
    found = aligned(size, chunk)
    assert found % chunk == 0 or chunk % found == 0
    assert found >= min(size, chunk)


@settings(deadline=None)
@given(
    st.tuples(*[st.integers(1, 50)] * 2),
    st.tuples(*[st.integers(1, 70)] * 2),
    st.booleans(),
    st.booleans(),
)
def test_the_price_counts_whole_chunks(chunk, tile, trans, encoded):
    """Of chunks that are not encoded, the rest of each row."""
    spec = OperandSpec(trans, "file", chunk=chunk[::-1] if trans else chunk, encoded=encoded)
    m, k = (extent * count for extent, count in zip(tile, chunk, strict=True))
    problem = Problem(m, 8, k, a=spec)
    shape = Shapes.of(Shape((tile[0], 8, tile[1]), tile[1], tile[1], (2, 2, 2)))
    rects = [Rect(row, col, *tile) for row in range(0, m, tile[0]) for col in range(0, k, tile[1])]
    whole = sum(moved_area(problem, "A", rect) for rect in rects)
    assert whole >= m * k
    # The closed form is an average; the matrix's end may cut its last chunks.
    assert moved_ratio(problem, shape, "A")[0] * m * k >= whole * 0.999
    # Where chunks end with the matrix, it is exact.
    if m % chunk[0] == k % chunk[1] == 0 and m > tile[0] and k > tile[1]:
        np.testing.assert_allclose(moved_ratio(problem, shape, "A")[0] * m * k, whole)


def test_gaps_of_chunks_are_read_where_their_rows_are_short():
    rect, long = Rect(0, 0, 10, 500), OperandSpec(place="file", chunk=(100, 10_000))
    problem = Problem(10**4, 10**4, 10**4, a=long, b=OperandSpec(place="file", chunk=(100, 1000)))
    problem = replace(problem, c=problem.b)
    assert moved_area(problem, "A", rect) == rect.area
    assert moved_area(problem, "B", rect) == 10 * 1000
    assert moved_area(problem, "C", rect) == rect.area


@pytest.mark.parametrize(
    ("chunk", "rows", "cols", "requests"),
    [
        (None, 300, 2000, 300),
        (None, 3000, 8192, 24),  # 8 MiB each
        ((1024, 1024), 2048, 1024, 2),
        ((1024, 1024), 512, 8192, 8),
        ((1024, 1024), 1, 1, 1),
        ((2048, 1024), 2049, 1024, 4),
        ((64, 8000), 128, 8000, 2),
        ((64, 8000), 128, 500, 128),  # rows of 64 kB: no gaps are read
    ],
)
def test_requests_of_a_rectangle(chunk, rows, cols, requests):
    spec = OperandSpec(place="file", chunk=chunk)
    assert file_requests(spec, rows, cols, 8192) == requests
    many = np.array([rows, rows])
    np.testing.assert_array_equal(file_requests(spec, many, cols, 8192), requests)


def test_chunks_that_do_not_go_together_leave_the_input_s():
    a = OperandSpec(place="file", chunk=(100, 100), encoded=True)
    c = OperandSpec(place="file", chunk=(64, 64), encoded=True)
    problem = Problem(5000, 5000, 5000, a=a, b=OperandSpec(), c=c)
    assert chunk_along(problem, "m") == 100
    assert chunk_along(problem, "n") == 64
    problem = Problem(5000, 5000, 5000, a=a, b=OperandSpec(chunk=(50, 50)), c=c)
    assert chunk_along(problem, "k") == 100


def test_reads_of_a_chunk_s_parts_decode_it_once():
    class Store:
        shape, dtype, chunks = (40, 40), np.dtype("f8"), (20, 20)
        x = np.arange(1600.0).reshape(40, 40)

        def __init__(self):
            self.reads = []

        def __getitem__(self, key):
            self.reads.append(key)
            return self.x[key]

    for keeps, times in ((True, 1), (False, 20)):
        store = Store()
        matrix = RectangleMatrix(store, name="s", chunk=(20, 20), keeps=keeps)
        out = np.empty((1, 13), "f4")
        for row in range(20, 40):
            matrix.read(row, 22, out)
            np.testing.assert_array_equal(out, store.x[row : row + 1, 22:35])
        assert len(store.reads) == times


CALLS = {
    "matmul": lambda a, options: hdgemm.matmul(a, np.ones((30, 2)), options=options),
    "svdvals": lambda a, options: linalg.svdvals(a, options=options),
    "lu_factor": lambda a, options: linalg.lu_factor(hdgemm.open(a)[:20, :20], options=options),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
def test_a_chunk_larger_than_the_memory_is_refused(tmp_path, kind, call):
    # Decoded, with its stored bytes, it took 720 MB where 40 MB were allowed.
    chunk = 300_000, 30  # 72 MB, of one value
    if kind == "zarr":
        a = tmp_path / "a.zarr"
        zarr.create_array(a, shape=chunk, chunks=chunk, dtype="f8", fill_value=1)
    else:
        a = f"{tmp_path / 'a.h5'}::a"
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("a", chunk, "f8", chunks=chunk, compression="gzip", fillvalue=1)
    with pytest.raises(hdgemm.DoesNotFitError, match=r"decoding a chunk of .*72\.0 MB") as error:
        CALLS[call](a, hdgemm.Options(host_memory="100MB", devices="host"))
    assert error.value.requested == 144_000_000
    assert error.value.available == 100_000_000


def test_threads_that_read_one_large_chunk_decode_it_once(tmp_path):
    counted = CountingStore(MemoryStore())
    shape = 70_000, 31  # 17 MB
    array = zarr.create_array(counted, shape=shape, chunks=shape, dtype="f8")
    array[:] = 1.0
    counted.counts.clear()
    matrix = open_operand(array).matrix
    parts = [(top, np.empty((7000, 31))) for top in range(0, 70_000, 7000)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda part: matrix.read(part[0], 0, part[1]), parts))
    assert all((part == 1.0).all() for _, part in parts)
    assert set(counted.counts.values()) == {1}
