import threading

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm import fortran
from hdgemm.errors import DoesNotFitError
from hdgemm.linalg import lstsq
from hdgemm.linalg.rows import tsqr
from tests.linalg.matrices import DTYPES, SOUND, norm1, random_matrix, widened
from tests.linalg.tall import plan_tsqr

ROWS = hdgemm.Options(tile=(11, 1, 1), host_memory="20MB", threads=2)


def assert_solution(found, a, b):
    """Compare with SciPy, and judge the gradient A^H·(b - A·x) in units of its rounding errors."""
    x, residues, rank, s = found
    expected = scipy.linalg.lstsq(a, b)
    assert x.shape == expected[0].shape
    assert x.dtype == a.dtype
    assert rank == expected[2]
    assert np.shape(residues) == np.shape(expected[1])
    wide, eps = widened(a), np.finfo(a.dtype).eps
    np.testing.assert_allclose(
        np.sqrt(residues), np.sqrt(expected[1]), rtol=0, atol=30 * len(a) * eps * norm1(b)
    )
    np.testing.assert_allclose(s, expected[3], rtol=0, atol=100 * eps * max(s, default=0))
    rest = widened(b) - wide @ widened(x)
    unit = len(a) * eps * norm1(wide) * (norm1(wide) * norm1(x) + norm1(b))
    assert norm1(wide.conj().T @ rest) <= SOUND * unit


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(0, 23), more=st.integers(0, 60), p=st.integers(1, 3), rows=st.integers(1, 17),
    cores=st.integers(1, 3), dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"),
)  # fmt: skip
def test_any_blocks_of_rows_give_scipys_solution(n, more, p, rows, cores, dtype, order):
    a = np.asarray(random_matrix(n + more, n, dtype, seed=n), order=order)
    b = random_matrix(n + more, p, dtype, seed=1)
    options = hdgemm.Options(tile=(rows, 1, 1), host_memory="20MB", threads=cores)
    assert_solution(lstsq(a, b, options=options), a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_rows_is_reduced_by_strips(monkeypatch, dtype):
    monkeypatch.setattr(tsqr, "_STRIP_BYTES", 1)  # strips of 64 rows, and one of 8
    a, b = random_matrix(200, 9, dtype), random_matrix(200, 3, dtype, seed=1)
    options = hdgemm.Options(tile=(200, 1, 1), host_memory="20MB", threads=1)
    assert_solution(lstsq(a, b, options=options), a, b)


@pytest.mark.parametrize("order", ["C", "F"])
def test_files_are_read_once(tmp_path, order):
    a, b = random_matrix(101, 7, "float64"), random_matrix(101, 2, "float64", seed=1)
    np.save(tmp_path / "A.npy", np.asarray(a, order=order))
    np.save(tmp_path / "B.npy", b)
    events, reports = [], []
    x, residues, rank, s = lstsq(
        tmp_path / "A.npy", tmp_path / "B.npy", out=tmp_path / "X.npy", options=ROWS,
        observer=events.append, report=reports.append,
    )  # fmt: skip
    assert_solution((x, residues, rank, s), a, b)
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy"), x)
    assert sum(event.nbytes for event in events) == a.nbytes + b.nbytes
    assert reports[0].plan["rows"] == 11


def test_a_vector_has_a_vector_as_solution(tmp_path):
    a, b = random_matrix(40, 5, "float64"), random_matrix(40, 1, "float64", seed=1)[:, 0]
    np.save(tmp_path / "A.npy", a)
    assert_solution(lstsq(tmp_path / "A.npy", b, options=ROWS), a, b)
    out = np.empty(5)
    assert lstsq(a, b, out=out, options=ROWS)[0] is out
    np.testing.assert_allclose(out, scipy.linalg.lstsq(a, b)[0])


@pytest.mark.parametrize("driver", ["gelsd", "gelsy", "gelss"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_matrix_of_lower_rank_has_the_solution_of_least_norm(driver, dtype):
    a = random_matrix(60, 4, dtype) @ random_matrix(4, 9, dtype, seed=1)
    b = random_matrix(60, 2, dtype, seed=2)
    x, residues, rank, s = lstsq(a, b, 1e-12, lapack_driver=driver, options=ROWS)
    expected = scipy.linalg.lstsq(a, b, 1e-12, lapack_driver=driver)
    np.testing.assert_allclose(x, expected[0], rtol=1e-9, atol=1e-12)
    assert rank == expected[2] == 4
    assert residues.size == 0  # NaN in SciPy from 1.18 on
    assert residues.dtype == expected[1].dtype
    assert (s is None) == (expected[3] is None)


@pytest.mark.parametrize("driver", ["gelsd", "gelsy", "gelss"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_triangle_is_solved_without_the_interpreters_lock(monkeypatch, driver, dtype):
    called, routine = set(), fortran._routine
    monkeypatch.setattr(
        fortran, "_routine", lambda module, name: called.add(name) or routine(module, name)
    )
    a, b = random_matrix(70, 17, dtype), random_matrix(70, 2, dtype, seed=1)
    x = lstsq(a, b, lapack_driver=driver, options=ROWS)[0]
    assert fortran.LETTERS[a.dtype.char] + driver in called
    expected = scipy.linalg.lstsq(widened(a), widened(b))[0]
    assert norm1(x - expected) <= SOUND * len(a) * np.finfo(dtype).eps * norm1(expected)


@pytest.mark.parametrize("scale", [1e-290, 1e290])
def test_elements_near_overflow_and_underflow(scale):
    a, b = random_matrix(50, 6, "float64"), random_matrix(50, 1, "float64", seed=1)
    x = lstsq(a * scale, b, options=ROWS)[0]
    np.testing.assert_allclose(x * scale, scipy.linalg.lstsq(a, b)[0], rtol=1e-10)


def test_the_same_plan_gives_the_same_bits():
    a, b = random_matrix(200, 9, "float64"), random_matrix(200, 1, "float64", seed=1)
    first, second = (lstsq(a, b, options=ROWS)[0].tobytes() for _ in range(2))
    assert first == second


def test_nan_is_named_with_its_position(tmp_path):
    a, b = random_matrix(50, 4, "float64"), random_matrix(50, 2, "float64")
    a[33, 2] = np.nan
    with pytest.raises(hdgemm.InputError, match="a has nan at row 33, column 2") as caught:
        lstsq(a, b, out=tmp_path / "X.npy", options=ROWS)
    assert (caught.value.row, caught.value.col) == (33, 2)
    a[33, 2], b[7, 1] = 0, np.inf
    with pytest.raises(hdgemm.InputError, match="b has inf at row 7, column 1"):
        lstsq(a, b, out=tmp_path / "X.npy", options=ROWS)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused():
    a = np.ones((4, 3))
    with pytest.raises(hdgemm.InputError, match="b has 3 rows, the matrix 4"):
        lstsq(a, np.ones(3))
    with pytest.raises(hdgemm.InputError, match="no columns"):
        lstsq(a, np.ones((4, 0)))
    with pytest.raises(hdgemm.InputError, match="lapack_driver"):
        lstsq(a, np.ones(4), lapack_driver="gels")
    with pytest.raises(DoesNotFitError) as caught:
        lstsq(a, np.ones(4), options=hdgemm.Options(host_memory="1kB"))
    options = hdgemm.Options(host_memory=1000 + caught.value.missing)
    assert lstsq(a, np.ones(4), options=options)[2] == 1


@pytest.mark.parametrize("stage", ["load1", "mult1"])
def test_cancelling_in_any_stage_publishes_nothing(tmp_path, stage):
    cancel = threading.Event()

    def observe(event):
        if event.stage == stage and event.step == 1:
            cancel.set()

    with pytest.raises(hdgemm.CancelledRunError):
        lstsq(
            np.ones((400, 3)), np.ones(400), out=tmp_path / "X.npy", options=ROWS,
            observer=observe, cancel=cancel,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_failing_input_reaches_the_caller(tmp_path):
    class Broken:
        shape, dtype = (400, 3), np.dtype("float64")

        def __getitem__(self, key):
            if key[0].start >= 200:
                raise OSError(5, "Input/output error")
            return np.ones(self.shape)[key]

    with pytest.raises(hdgemm.MatrixIOError, match="Input/output error"):
        lstsq(Broken(), np.ones(400), out=tmp_path / "X.npy", options=ROWS)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 2000), more=st.integers(0, 10**6), p=st.integers(0, 9),
    memory=st.integers(10**5, 10**9), cores=st.integers(1, 9),
)  # fmt: skip
def test_blocks_cover_the_rows_and_fit_the_memory(n, more, p, memory, cores):
    try:
        plan = plan_tsqr(n + more, n, p, memory, cores)
    except DoesNotFitError as error:
        memory += error.missing
        plan = plan_tsqr(n + more, n, p, memory, cores)
    assert plan.host_bytes <= memory
    if plan.m / plan.rows < 1000:
        blocks = sorted(block for core in range(plan.cores) for block in plan.blocks(core))
        assert [first for first, _ in blocks] == [0, *(last for _, last in blocks[:-1])][
            : len(blocks)
        ]
        assert (blocks[-1][1] if blocks else 0) == plan.m
