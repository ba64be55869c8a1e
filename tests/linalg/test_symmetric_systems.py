"""Solves of symmetric and Hermitian systems of which one triangle is stored."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings, strategies as st

import hdgemm
from hdgemm.call.run import folder_of
from hdgemm.linalg import plan, solve
from tests.linalg.interruption import InterruptedRunError, interrupt_after
from tests.linalg.matrices import DTYPES, SOUND, norm1, random_matrix, widened

SLABS = hdgemm.Options(tile=(1, 7, 3), host_memory="20MB")


def symmetric_pair(n, dtype, structure, *, lower, seed=0):
    """Return a matrix, and its triangle with NaN in the place of all that must have no effect."""
    triangle = np.tril(random_matrix(n, n, dtype, seed))
    mirror = triangle.conj().T if structure == "her" else triangle.T
    whole = np.tril(triangle, -1) + np.triu(mirror, 1) + np.diag(np.diagonal(triangle))
    poisoned = np.where(np.tri(n, dtype=bool), whole, np.nan).astype(dtype)
    if structure == "her" and np.dtype(dtype).kind == "c":
        np.fill_diagonal(whole, np.diagonal(whole).real)
        poisoned.imag[np.diag_indices(n)] = np.nan
    if lower:
        return whole, poisoned
    # The transpose of a symmetric or Hermitian matrix is of the same kind.
    return np.ascontiguousarray(whole.T), np.ascontiguousarray(poisoned.T)


def assert_solves(a, x, b):
    error = norm1(np.atleast_2d(widened(a) @ widened(np.asarray(x)) - widened(np.asarray(b))))
    unit = norm1(a) * norm1(np.atleast_2d(x)) * np.finfo(a.dtype).eps / 2 * max(1, len(a))
    assert error <= SOUND * unit


def write(folder, kind, a):
    """Store a matrix in some way; return it as an operand."""
    if kind == "strided":
        return np.repeat(np.repeat(a, 2, axis=0), 2, axis=1)[::-2, ::2][::-1]
    if kind in ("C", "F"):
        return np.asarray(a, order=kind)
    if kind == "big-endian":
        np.save(folder / "A.npy", a.astype(a.dtype.newbyteorder(">")))
    elif kind.startswith("npy"):
        np.save(folder / "A.npy", np.asarray(a, order=kind[-1]))
    else:
        place = f"{folder / 'A.h5'}::/A" if kind == "h5" else str(folder / "A.zarr")
        with hdgemm.create(place, a.shape, a.dtype.name) as stored:
            stored.write(a)
        return place
    return folder / "A.npy"


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 23), dtype=st.sampled_from(DTYPES), structure=st.sampled_from(["sym", "her"]),
    lower=st.booleans(), order=st.sampled_from(["C", "F", "strided"]), transposed=st.booleans(),
)  # fmt: skip
def test_one_triangle_of_an_array_is_read(n, dtype, structure, lower, order, transposed):
    a, stored = symmetric_pair(n, dtype, structure, lower=lower)
    b = random_matrix(n, 2, dtype, seed=1)
    given = write(None, order, stored)
    before = given.copy()
    x = solve(given, b, lower, assume_a=structure, transposed=transposed, overwrite_a=True)
    assert_solves(a.T if transposed else a, x, b)
    np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("kind", ["npyC", "npyF", "big-endian", "h5", "zarr"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(("dtype", "structure"), [
    ("float32", "sym"), ("float64", "her"), ("complex64", "her"), ("complex128", "sym"),
    ("complex128", "her"),
])  # fmt: skip
def test_one_triangle_of_a_file_is_read(tmp_path, kind, lower, dtype, structure):
    n = 61
    a, stored = symmetric_pair(n, dtype, structure, lower=lower)
    b = random_matrix(n, 3, dtype, seed=1)
    source = write(tmp_path, kind, stored)
    before = sorted(path.name for path in tmp_path.iterdir())
    for options in (SLABS, hdgemm.Options(host_memory="80MB", devices="host")):
        reports = []
        x = solve(source, b, lower, assume_a=structure, overwrite_a=True, options=options,
                  report=reports.append)  # fmt: skip
        assert_solves(a, x, b)
        assert reports[0].moved_bytes == reports[0].planned_bytes
        shown = plan("solve", source, columns=b, assume_a=structure, lower=lower,
                     overwrite_a=True, options=options)  # fmt: skip
        assert reports[0].plan == shown.summary()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    np.testing.assert_array_equal(np.asarray(hdgemm.open(source)), stored)


def test_results_are_scipys():
    n = 40
    for dtype, structure in (("float64", "sym"), ("complex128", "sym"), ("complex128", "her")):
        b = random_matrix(n, 2, "complex128", seed=1)
        for lower in (False, True):
            _, a = symmetric_pair(n, dtype, structure, lower=lower)
            call = partial(solve, lower=lower, assume_a=structure, check_finite=False)
            if structure == "her":
                np.fill_diagonal(a, np.diagonal(a).real + 7j)
            expected = scipy.linalg.solve(a, b, lower=lower, assume_a=structure, check_finite=False)
            np.testing.assert_allclose(call(a, b), expected, rtol=1e-9)
            np.testing.assert_allclose(call(a, b[:, 0]), expected[:, 0], rtol=1e-9)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("in_file", [False, True])
def test_a_nan_is_named_by_its_place_in_the_triangle(tmp_path, lower, order, in_file):
    _, a = symmetric_pair(61, "float64", "sym", lower=lower)
    place = (50, 9) if lower else (9, 50)
    a[place] = np.inf
    source = write(tmp_path, f"npy{order}" if in_file else order, a)
    with pytest.raises(hdgemm.InputError, match=f"a has inf at row {place[0]},") as caught:
        solve(source, np.ones(61), lower, assume_a="sym", options=SLABS)
    assert (caught.value.row, caught.value.col) == place


@pytest.mark.parametrize("refine", [None, "float32"])
def test_a_durable_solve_goes_on_from_one_triangle(tmp_path, refine):
    a, stored = symmetric_pair(40, "float64", "sym", lower=True)
    a, stored = a + 40 * np.eye(40), stored + 40 * np.eye(40)
    np.save(tmp_path / "A.npy", stored)
    np.save(tmp_path / "B.npy", random_matrix(40, 12, "float64", seed=1))
    call = partial(solve, tmp_path / "A.npy", tmp_path / "B.npy", True, assume_a="sym",
                   refine=refine, options=SLABS, checkpoint=True)  # fmt: skip
    events = []
    expected = np.array(call(out=tmp_path / "whole.npy", observer=events.append))
    assert_solves(a, expected, np.load(tmp_path / "B.npy"))
    with pytest.raises(InterruptedRunError):
        call(out=tmp_path / "X.npy", observer=interrupt_after(len(events) * 2 // 3))
    reports = []
    np.testing.assert_array_equal(call(out=tmp_path / "X.npy", report=reports.append), expected)
    assert reports[0].resumption.kept > 0


def test_an_out_over_a_is_refused_while_residuals_are_computed():
    a, _ = symmetric_pair(20, "float64", "sym", lower=True)
    for structure in ("gen", "sym"):
        with pytest.raises(hdgemm.InputError, match="out overlaps"):
            solve(a, a.copy(), assume_a=structure, refine="float32", out=a)


def test_short_pieces_of_a_triangle_are_priced(tmp_path):
    n = 900
    np.save(tmp_path / "A.npy", np.zeros((n, n)))
    np.save(tmp_path / "F.npy", np.zeros((n, n), order="F"))
    options = replace(SLABS, tile=(1, 100, 50))
    with hdgemm.open(tmp_path / "F.npy") as f:
        assert folder_of(f) == tmp_path

    def load(name, **keywords):
        shown = plan("solve", tmp_path / name, options=options, **keywords)
        return shown.parts[0].expected_phase_seconds["load"]

    contiguous, rows = load("F.npy"), load("A.npy")
    for structure in ("sym", "her"):
        for name in ("A.npy", "F.npy"):
            assert load(name, assume_a=structure) > contiguous
        described = plan("solve", n, assume_a=structure, options=options).parts[0]
        assert described.row_bytes == 8 * n
        assert not described.copied
    assert rows > contiguous
