"""solve(refine="float32"): factors in single precision, X as accurate as in double precision."""

import gc
import logging
import threading
import time
import weakref
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

import hdgemm
from hdgemm.fortran import gemm
from hdgemm.linalg import plan, solve
from hdgemm.linalg.planning.factors import row_bytes
from hdgemm.linalg.slabs import lu as lu_elimination
from hdgemm.linalg.slabs.pipeline import SlabPipeline
from hdgemm.linalg.solving import refinement
from hdgemm.linalg.solving.refinement import NotConvergedError
from hdgemm.matrices.base import Converted
from hdgemm.matrices.files import BlockFile
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.stored import StoredMatrix
from hdgemm.pipeline.devices.host_blas import SCIPY_SINGLE_THREADED
from tests.linalg.matrices import positive_definite, random_matrix

SLABS = hdgemm.Options(tile=(16, 11, 8), devices="host")
#: HPL accepts a solution below this.
SOUND = 16.0


def hpl_ratio(a, x, b):
    """||A·x - b|| / (eps·(||A||·||x|| + ||b||)·n) in infinity norms, with eps half of NumPy's."""
    eps = np.finfo(np.result_type(a, x)).eps / 2
    size = np.abs(a).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(a @ x - b).max() / (eps * size * len(a)))


def count_factors(monkeypatch):
    """Return a list that gets the dtype of each factorisation."""
    dtypes = []
    for room, name in (("solving.factors", "prepare_lu"), ("solving.factors", "prepare_cholesky")):
        module = import_module(f"hdgemm.linalg.{room}")
        original = getattr(module, name)

        def counted(a, *args, _original=original, **keywords):
            dtypes.append(str(hdgemm.open(a).dtype) if not hasattr(a, "dtype") else str(a.dtype))
            return _original(a, *args, **keywords)

        monkeypatch.setattr(module, name, counted)
    return dtypes


def test_a_converted_matrix_is_planned_with_the_rows_of_its_file(tmp_path):
    np.save(tmp_path / "A.npy", np.zeros((6, 10)))
    operand = open_operand(tmp_path / "A.npy")
    single = StoredMatrix(
        replace(operand, matrix=Converted(operand.matrix, np.dtype("f4"))), writable=False
    )
    assert row_bytes(single) == row_bytes(single[1:4, 2:]) == 10 * 4
    assert row_bytes(single.T) == 0


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("assume_a", ["gen", "her", "pos"])
@pytest.mark.parametrize("in_file", [True, False])
def test_solutions_are_as_accurate_as_in_double(tmp_path, monkeypatch, dtype, assume_a, in_file):
    dtypes = count_factors(monkeypatch)
    a = random_matrix(37, 37, dtype)
    if assume_a != "gen":
        a = positive_definite(37, dtype)
    b = random_matrix(37, 3, dtype, seed=1)
    source = a
    if assume_a != "gen":  # one triangle is read
        source = np.where(np.tri(37, k=-1) > 0, np.nan, a).astype(dtype)
    if in_file:
        np.save(tmp_path / "A.npy", np.asfortranarray(source))
        source = tmp_path / "A.npy"
    for transposed in (False, True) if dtype == "float64" or assume_a != "pos" else (False,):
        x = solve(
            source, b, assume_a=assume_a, transposed=transposed, refine="float32", options=SLABS
        )
        assert x.dtype == np.dtype(dtype)
        assert hpl_ratio(a.T if transposed else a, x, b) < SOUND / 16
    assert set(dtypes) == {"float32" if dtype == "float64" else "complex64"}
    x = solve(source, b[:, 0], assume_a=assume_a, refine="float32", out=np.zeros(37, dtype))
    assert hpl_ratio(a, x, b[:, 0]) < SOUND / 16
    assert [p.name for p in tmp_path.iterdir()] == (["A.npy"] if in_file else [])


def hilbert(n):
    return 1 / (1 + np.arange(n) + np.arange(n)[:, np.newaxis])


CASES = {
    "too ill-conditioned": hilbert(30),
    "beyond the range of single precision": random_matrix(30, 30, "float64") * 1e60,
    "singular in single precision": np.eye(30)
    + 1e-12 * random_matrix(30, 30, "float64")
    - np.diag(np.r_[1.0, np.zeros(29)]),
    "below the range of single precision": random_matrix(30, 30, "float64") * 1e-60,
}


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_converge_is_factored_in_double(tmp_path, monkeypatch, caplog, case):
    dtypes = count_factors(monkeypatch)
    a, b = CASES[case], random_matrix(30, 2, "float64", seed=1)
    np.save(tmp_path / "A.npy", a)
    with caplog.at_level(logging.WARNING):
        x = solve(tmp_path / "A.npy", b, refine="float32", options=SLABS)
    assert dtypes[0] == "float32"
    if dtypes[1:]:
        assert "double precision" in caplog.text
        np.testing.assert_array_equal(x, solve(tmp_path / "A.npy", b, options=SLABS))
    assert hpl_ratio(a, x, b) < SOUND
    assert [p.name for p in tmp_path.iterdir()] == ["A.npy"]


def test_scaled_right_hand_sides_stay_in_the_range_of_single_precision():
    a = random_matrix(25, 25, "float64")
    b = random_matrix(25, 4, "float64", seed=1) * np.array([1e-300, 1e-60, 1e60, 1e290])
    b = np.hstack([b, np.zeros((25, 1))])
    x = solve(a, b, refine="float32", options=SLABS)
    assert not x[:, 4].any()
    for column in range(4):
        assert hpl_ratio(a, x[:, column], b[:, column]) < SOUND / 16


@pytest.mark.parametrize(("count", "alone"), [(1, True), (17, False)])
def test_products_with_few_columns_take_one_thread(monkeypatch, count, alone):
    found = []

    def observed(*args, **keywords):
        found.append(SCIPY_SINGLE_THREADED._contexts > 0)
        gemm(*args, **keywords)

    for room in ("solving.refinement", "solving.triangles"):
        monkeypatch.setattr(f"hdgemm.linalg.{room}.gemm", observed)
    a = random_matrix(25, 25, "float64")
    solve(a, np.ones((25, count)), refine="float32", options=hdgemm.Options(devices="host"))
    assert set(found) == {alone}


def test_groups_of_columns_and_files(tmp_path):
    n, count = 60, 1200
    a, b = random_matrix(n, n, "float64"), random_matrix(n, count, "float64", seed=1)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    x = solve(
        tmp_path / "A.npy", tmp_path / "B.npy", refine="float32", out=tmp_path / "X.npy",
        options=hdgemm.Options(host_memory="8MB", devices="host"),
    )  # fmt: skip
    assert isinstance(x, np.memmap)
    assert hpl_ratio(a, np.asarray(x), b) < SOUND / 16


def test_single_precision_needs_no_refinement(monkeypatch):
    dtypes = count_factors(monkeypatch)
    a, b = random_matrix(9, 9, "float32"), np.ones(9, np.float32)
    np.testing.assert_array_equal(solve(a, b, refine="float32"), solve(a, b))
    assert dtypes == ["float32", "float32"]


def test_errors_are_those_of_a_plain_solve(tmp_path):
    a, b = random_matrix(11, 11, "float64"), np.ones(11)
    singular = a.copy()
    singular[:, 4] = 0
    with pytest.raises(np.linalg.LinAlgError, match="pivot 5 "):
        solve(singular, b, refine="float32")
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        solve(-np.eye(11), b, assume_a="pos", refine="float32")
    nan = a.copy()
    nan[3, 7] = np.nan
    with pytest.raises(hdgemm.InputError, match="row 3, column 7"):
        solve(nan, b, refine="float32")
    assert np.isnan(solve(nan, b, check_finite=False, refine="float32")).any()
    with pytest.raises(hdgemm.InputError, match="refine must be"):
        solve(a, b, refine="float16")
    with pytest.raises(hdgemm.InputError, match="rows"):
        solve(a, np.ones(10), refine="float32")
    with pytest.raises(hdgemm.InputError, match="out overlaps"):
        solve(a, b, refine="float32", out=b)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(hdgemm.CancelledRunError):
        solve(a, b, refine="float32", cancel=cancel)
    assert solve(np.zeros((0, 0)), np.zeros((0, 2)), refine="float32").shape == (0, 2)
    assert issubclass(NotConvergedError, hdgemm.HdgemmError)


def test_conversion_to_single_precision_gives_infinities_without_a_warning(tmp_path):
    a = np.full((700, 700), 1e300)
    np.save(tmp_path / "A.npy", a)
    for x in (a, tmp_path / "A.npy", a[::2]):
        operand = open_operand(x)
        matrix = Converted(operand.matrix, np.dtype("float32"))
        out = np.empty((200, 300), np.float32)
        matrix.read(5, 6, out)
        assert np.isinf(out).all()
        assert matrix.part(3, 4, (5, 6)).dtype == np.float32


@pytest.mark.parametrize("refine", [None, "float32"])
def test_factors_stay_in_memory_where_they_fit(tmp_path, refine):
    n = 300
    a, b = random_matrix(n, n, "float64"), random_matrix(n, 2, "float64", seed=1)
    np.save(tmp_path / "A.npy", a)
    factors = n * n * (4 if refine else 8)
    for memory, stores in ((80_000_000, False), (8_000_000 if refine else 7_000_000, True)):
        options = hdgemm.Options(host_memory=memory, devices="host")
        if stores:  # without room for the factors
            options = replace(options, tile=(16, 64, 32))
        shown = plan("solve", tmp_path / "A.npy", columns=2, refine=refine, options=options)
        assert shown.parts[0].stores == stores
        assert shown.host_bytes <= memory
        reports = []
        x = solve(tmp_path / "A.npy", b, refine=refine, options=options, report=reports.append)
        assert hpl_ratio(a, x, b) < SOUND / 16
        written = reports[0].moved_bytes.get("store2", 0)
        assert written == 0 if not stores else written >= factors
        assert reports[0].plan == shown.summary()


def test_the_planned_memory_decides_where_factors_are():
    held = {}
    for memory in (30_000_000, 40_000_000):
        options = hdgemm.Options(host_memory=memory, devices="host")
        shown = plan("solve", 2048, refine="float32", options=options)
        held[memory] = shown.parts[0].stores, shown.host_bytes
        assert shown.host_bytes <= memory
    assert [stores for stores, _ in held.values()] == [True, False]


@pytest.mark.parametrize("case", ["too ill-conditioned", "beyond the range of single precision"])
@pytest.mark.filterwarnings("ignore:An ill-conditioned:scipy.linalg.LinAlgWarning")
def test_factors_in_memory_are_freed_before_a_factorisation_in_double(tmp_path, monkeypatch, case):
    """Both would exceed the host memory."""
    module, arrays, alive = import_module("hdgemm.linalg.lu"), [], []
    original = module.slab_run

    def observed(a, out, *args):
        until = time.monotonic() + 60  # a thread that has read may not have dropped it yet
        while any(array() is not None for array in arrays) and time.monotonic() < until:
            time.sleep(0.001)
        alive.append([array() is not None for array in arrays])
        arrays.append(weakref.ref(out.operand.matrix.array))
        return original(a, out, *args)

    monkeypatch.setattr(module, "slab_run", observed)
    np.save(tmp_path / "A.npy", CASES[case])
    gc.disable()
    try:
        solve(tmp_path / "A.npy", np.ones(30), refine="float32",
              options=hdgemm.Options(devices="host"))  # fmt: skip
    finally:
        gc.enable()
    assert alive == [[], [False]]


def saved_system(folder, n, order):
    a, b = random_matrix(n, n, "float64"), random_matrix(n, 2, "float64", seed=1)
    np.save(folder / "A.npy", np.array(a, order=order))
    return a, b


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("refine", [None, "float32"])
def test_columns_are_read_by_strips(tmp_path, monkeypatch, order, refine):
    _, b = saved_system(tmp_path, 300, order)
    options, found = hdgemm.Options(devices="host"), []
    for strip in (1000, 128, 7):
        monkeypatch.setattr("hdgemm.linalg.slabs.slab.BLOCK_BYTES", strip * 300 * 8)
        reports = []
        found.append(
            solve(tmp_path / "A.npy", b, refine=refine, options=options, report=reports.append)
        )
        if refine is None:  # the number of steps is not known before the run
            assert reports[0].moved_bytes == reports[0].planned_bytes
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_columns_are_factored_before_all_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("hdgemm.linalg.slabs.slab.BLOCK_BYTES", 64 * 300 * 4)
    a, b = saved_system(tmp_path, 300, "C")
    factored, panel, load = threading.Event(), lu_elimination.factor_panel, SlabPipeline._load

    def observed(*args):
        factored.set()
        return panel(*args)

    def wait_at_last(pipeline, walk, strip, after):
        if strip.place.last == 300:
            assert factored.wait(120)
        return load(pipeline, walk, strip, after)

    monkeypatch.setattr("hdgemm.linalg.slabs.elimination.cores", lambda: 2)  # chunks of 80 columns
    monkeypatch.setattr(lu_elimination, "factor_panel", observed)
    monkeypatch.setattr(SlabPipeline, "_load", wait_at_last)
    x = solve(tmp_path / "A.npy", b, refine="float32", options=hdgemm.Options(devices="host"))
    assert hpl_ratio(a, x, b) < SOUND / 16


def test_a_strip_that_cannot_be_used_ends_the_factorisation(tmp_path, monkeypatch):
    monkeypatch.setattr("hdgemm.linalg.slabs.slab.BLOCK_BYTES", 64 * 300 * 4)
    options = hdgemm.Options(devices="host")
    a, b = saved_system(tmp_path, 300, "F")
    a[17, 200] = np.nan
    np.save(tmp_path / "A.npy", np.asfortranarray(a))
    for refine in (None, "float32"):
        with pytest.raises(hdgemm.InputError, match="row 17, column 200"):
            solve(tmp_path / "A.npy", b, refine=refine, options=options)
    monkeypatch.setattr(BlockFile, "read", refuse_reads)
    monkeypatch.setattr(BlockFile, "read_around", refuse_reads)
    with pytest.raises(hdgemm.MatrixIOError, match="broken"):
        solve(tmp_path / "A.npy", b, refine="float32", options=options)
    assert [p.name for p in tmp_path.iterdir()] == ["A.npy"]


def refuse_reads(*_):
    raise hdgemm.MatrixIOError("broken", path="A.npy", offset=0, length=0)


@pytest.mark.parametrize(
    ("ratios", "solves", "double"),
    [
        ([1.0], 1, False),
        ([1e7, 0.9], 2, False),
        ([1e7, 50.0], 3, False),  # the last correction is expected to leave 2.5e-4 of the bound
        ([1e7, 9e4, 900.0, 0.5], 4, False),
        ([1e7, 9e4, 9.0], 4, False),
        ([1e7, 6e6], 2, True),
        ([np.nan], 1, True),
        ([1e7, np.nan], 2, True),
    ],
)
def test_steps_of_refinement(monkeypatch, caplog, ratios, solves, double):
    found, corrections, left = refinement.Refinement._correct, [], iter(ratios)

    def counted(*args):
        corrections.append(1)
        found(*args)

    monkeypatch.setattr(refinement.Refinement, "_correct", counted)
    monkeypatch.setattr(refinement, "_ratios", lambda *_: np.array([0.25, next(left)]))
    with caplog.at_level(logging.WARNING):
        x = solve(np.eye(5) * 3, np.ones((5, 2)), refine="float32", options=SLABS)
    np.testing.assert_allclose(x, 1 / 3)
    assert len(corrections) == solves
    assert next(left, None) is None
    assert ("double precision" in caplog.text) == double
