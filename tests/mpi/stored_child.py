"""Run under mpiexec by test_stored: stored matrices on every grid; rank 0 prints what differs."""

import itertools
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import scipy.linalg

from bench.gallery import GALLERY
from hdgemm import linalg, mpi
from hdgemm.dtypes import SUPPORTED
from hdgemm.mpi import _run as run, _strips as strips
from hdgemm.mpi.communicator import world
from tests.mpi.ranks import factor_ratio, finish, ratio, stored_pair, without_syncs

#: Order, block size, right-hand sides (0: one vector), order of the file, bytes of a strip.
CASES = (
    (1, 4, 1, "C", 64),
    (23, 4, 5, "F", 200),
    (37, 5, 40, "C", 1000),
    (30, 64, 0, "F", 1 << 20),
)

everyone, folder = world(), Path(sys.argv[1])
logging.disable()  # warnings of systems that are factored again
run.GROUP = 16  # several groups of columns
without_syncs()


def say(group, *what):
    if group.rank == 0:
        print(*what)


def check(group, p, q, dtype, case):
    n, nb, columns, order, strips.STRIP_BYTES = case
    a, b = stored_pair(group, folder, dtype, n, columns, order)
    how = {"comm": group, "grid": (p, q), "nb": nb}
    where, name = folder / "A.npy", f"{p}x{q} {dtype} {case}"
    reports = []
    x = mpi.solve(where, folder / "B.npy", report=reports.append, **how)
    stored = mpi.solve(where, folder / "B.npy", out=folder / "X.npy", **how)
    lu, piv = mpi.lu_factor(where, out=folder / "LU.npy", **how)
    again = mpi.lu_solve(folder / "LU.npy", folder / "B.npy", **how | {"nb": nb + 1})
    opened = linalg.open(folder / "LU.npy")
    alone = linalg.lu_solve(opened, b)
    ratios = [ratio(a, np.asarray(each), b) for each in (x, stored, again, alone)]
    if not max(ratios) < 16:
        say(group, name, ratios)
    if x.tobytes() != np.asarray(stored).tobytes() or x.shape != b.shape or x.dtype != dtype:
        say(group, name, "the stored X is another one", x.shape, x.dtype)
    if not factor_ratio(a, np.asarray(lu), piv) < 30:
        say(group, name, "P·A - L·U", factor_ratio(a, np.asarray(lu), piv))
    if (piv != scipy.linalg.lu_factor(a)[1]).any() or (piv != opened.piv).any():
        say(group, name, "other pivots than LAPACK's")
    found, expected = mpi.slogdet(where, **how), np.linalg.slogdet(a)
    tolerance = 100 * n * np.finfo(dtype).eps
    if max(abs(found[0] - expected[0]), abs(found[1] - expected[1]) / n) > tolerance:
        say(group, name, "slogdet", found, expected)
    if (reports[0].n, reports[0].columns) != (n, max(columns, 1)):
        say(group, name, reports)


def check_cholesky(group, p, q, dtype, lower):
    """One triangle alone is read; the factor is LAPACK's, and solves here and on one machine."""
    how = {"comm": group, "grid": (p, q), "nb": 5}
    n, strips.STRIP_BYTES = 33, 700
    rng, unit = np.random.default_rng(n), np.finfo(dtype).eps
    a = rng.standard_normal((n, n))
    if dtype.startswith("c"):
        a = a + 1j * rng.standard_normal((n, n))
    a = (a @ a.conj().T + np.eye(n)).astype(dtype)
    b = rng.standard_normal((n, 9)).astype(dtype)
    half = np.tril(a) if lower else np.triu(a)
    other = np.tri(n, dtype=bool).T if lower else np.tri(n, dtype=bool)
    np.fill_diagonal(other, val=False)
    half[other] = np.nan
    c = np.asarray(mpi.cholesky(half, lower, out=folder / "C.npy", **how))
    product = c @ c.conj().T if lower else c.conj().T @ c
    error = np.abs(product - a).max() / (np.abs(a).max() * n * unit)
    if not error < 30 or c[other].any():
        say(group, f"{p}x{q} {dtype} lower={lower}: Cholesky", error)
    solutions = (
        mpi.cho_solve(folder / "C.npy", b, **how | {"nb": 4}),
        mpi.solve(half, b, lower, assume_a="pos", out=folder / "X.npy", **how),
        linalg.cho_solve(linalg.open(folder / "C.npy"), b),
    )
    ratios = [ratio(a, np.asarray(x), b) for x in solutions]
    if not max(ratios) < 16:
        say(group, f"{p}x{q} {dtype} lower={lower}: Cholesky", ratios)
    a[17, 17] = -1
    try:
        mpi.cholesky(a, lower, out=folder / "C.npy", **how)
        say(group, "a matrix that is not positive definite was factored")
    except scipy.linalg.LinAlgError as error:
        if error.order != 18:
            say(group, error)


def check_dealt(group, p, q, dtype):
    """An array per rank gives the bits of the whole array; L's rows have LAPACK's order."""
    n, nb, columns = 23, 4, 7
    a, b = stored_pair(group, folder, dtype, n, columns, "F")
    how = {"comm": group, "grid": (p, q), "nb": nb}

    def dealt(whole):
        part = mpi.BlockCyclicArray.empty(whole.shape, dtype, nb=nb, grid=(p, q), rank=group.rank)
        rows, cols = part.axes(group.rank)
        part.local[:] = whole[np.ix_(rows.positions(), cols.positions())]
        return part

    def same(part, whole):
        return part.local.tobytes() == dealt(np.asarray(whole)).local.tobytes()

    x = mpi.solve(dealt(a), dealt(b), comm=group)
    found = mpi.lu_factor(dealt(a), comm=group)
    lu, piv = mpi.lu_factor(a, out=folder / "LU.npy", **how)
    spd = (a @ a.conj().T + np.eye(n)).astype(dtype)
    c = mpi.cholesky(dealt(np.tril(spd)), lower=True, comm=group)
    results = {
        "solve": same(x, mpi.solve(a, b, **how)),
        "a mixed solve": same(mpi.solve(a, dealt(b), comm=group), mpi.solve(a, b, **how)),
        "lu_factor": same(found.lu, lu) and (found.piv == piv).all(),
        "lu_solve": same(
            mpi.lu_solve(found, dealt(b), comm=group), mpi.lu_solve((lu, piv), b, **how)
        ),
        "slogdet": mpi.slogdet(dealt(a), comm=group) == mpi.slogdet(a, **how),
        "cholesky": same(c, mpi.cholesky(spd, lower=True, out=folder / "C.npy", **how)),
        "cho_solve": same(
            mpi.cho_solve((c, True), dealt(b), comm=group),
            mpi.cho_solve((folder / "C.npy", True), b, **how),
        ),
    }
    for rank, each in enumerate(group.collect(results)):
        if wrong := [name for name, right in each.items() if not right]:
            say(group, f"{p}x{q} {dtype}: dealt operands on rank {rank}", wrong)
    a[13, 6] = np.nan
    try:
        mpi.lu_factor(dealt(a), comm=group)
        say(group, "NaN was factored")
    except ValueError as error:
        if (error.row, error.col) != (13, 6):
            say(group, error)


def check_permutations(group, p, q):
    """Factors of permutations, whose every row moves, are exact; so is a singular matrix' zero."""
    how = {"comm": group, "grid": (p, q), "nb": 4}
    reverse = np.eye(19)[::-1]
    x = mpi.solve(reverse, np.arange(19.0), **how)
    if (x != np.arange(19.0)[::-1]).any():
        say(group, f"{p}x{q}: reversed permutation", x)
    singular = np.diag([1.0] * 7 + [0.0] + [1.0] * 4)
    try:
        mpi.solve(singular, np.ones(12), **how)
        say(group, "a singular matrix has a solution")
    except scipy.linalg.LinAlgError as error:
        if error.order != 8:
            say(group, error)
    if mpi.slogdet(singular, **how) != (0.0, -np.inf):
        say(group, "slogdet of a singular matrix", mpi.slogdet(singular, **how))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mpi.lu_factor(singular, out=folder / "S.npy", **how)
    if "number 8 is exactly zero" not in str(caught[-1].message):
        say(group, [str(each.message) for each in caught])


def check_tournament(group, p, q, dtype):
    """Factors with tournament pivoting of matrices of all kinds; one process pivots partially."""
    n = 40
    how = {"comm": group, "grid": (p, q), "nb": 7}
    for name, make in GALLERY.items():
        a = make(n).astype(dtype)
        a = a / np.exp2(np.frexp(np.abs(a).max())[1])
        for way in ("partial", "tournament"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # singular matrices
                lu, piv = mpi.lu_factor(a, out=folder / "LU.npy", pivoting=way, **how)
            lu = np.asarray(lu)
            growth = max(1.0, np.abs(np.triu(lu)).max() / np.abs(a).max())
            if not factor_ratio(a, lu, piv) < 30 * growth:
                say(group, f"{p}x{q} {dtype} {name} {way}", factor_ratio(a, lu, piv), growth)
            if way == "tournament" and p == 1 and (piv != scipy.linalg.lu_factor(a)[1]).any():
                say(group, f"{p}x{q} {dtype} {name}: other pivots than LAPACK's")
        group.collect(None)
    a, b = stored_pair(group, folder, dtype, 43, 3, "C")
    x, y = (mpi.solve(a, b, pivoting="tournament", **how) for _ in range(2))
    if not ratio(a, x, b) < 16 or x.tobytes() != y.tobytes():
        say(group, f"{p}x{q} {dtype}: tournament", ratio(a, x, b))


def check_refined(group, p, q):
    """X is refined to double precision; where it cannot be, A is factored in double precision."""
    how = {"comm": group, "grid": (p, q), "nb": 5, "refine": "float32"}
    for dtype in ("float64", "complex128"):
        a, b = stored_pair(group, folder, dtype, 37, 40, "C")
        x = mpi.solve(a, b, **how)
        if (
            not ratio(a, x, b) < 16
            or x.tobytes() == mpi.solve(a, b, **how | {"refine": None}).tobytes()
        ):
            say(group, f"{p}x{q} {dtype}: refined", ratio(a, x, b))
        spd = (a @ a.conj().T + np.eye(37)).astype(dtype)
        for lower in (True, False):
            half = np.tril(spd) if lower else np.triu(spd)
            half[np.triu_indices(37, 1) if lower else np.tril_indices(37, -1)] = np.nan
            x, y = (
                mpi.solve(half, b, lower, assume_a="pos", **how | {"refine": each})
                for each in ("float32", None)
            )
            if not ratio(spd, x, b) < 16 or x.tobytes() == y.tobytes():
                say(group, f"{p}x{q} {dtype}: refined Cholesky", ratio(spd, x, b))
    hilbert = scipy.linalg.hilbert(12)
    for a in (hilbert, np.diag([1.0] * 11 + [1e-60])):
        x, y = (mpi.solve(a, np.ones(12), **how | {"refine": each}) for each in ("float32", None))
        if x.tobytes() != y.tobytes():
            say(group, f"{p}x{q}: factored again", x, y)
    near = np.diag([1.0] * 11 + [1e-60])
    x, y = (
        mpi.solve(near, np.ones(12), assume_a="pos", **how | {"refine": each})
        for each in ("float32", None)
    )
    if x.tobytes() != y.tobytes():
        say(group, f"{p}x{q}: Cholesky again", x, y)


def check_refusals(group, p, q):
    """Errors are raised by every rank, and nothing is published."""
    how = {"comm": group, "grid": (p, q), "nb": 4}
    a = np.random.default_rng(1).standard_normal((20, 20))
    a[13, 6] = np.nan
    for order in "CF":
        before = sorted(folder.iterdir())
        group.collect(None)
        try:
            mpi.lu_factor(np.array(a, order=order), out=folder / "N.npy", **how)
            say(group, "NaN was factored")
        except ValueError as error:
            if (error.row, error.col) != (13, 6):
                say(group, error)
        group.collect(None)
        if sorted(folder.iterdir()) != before:
            say(group, sorted(folder.iterdir()))
    if not np.isnan(mpi.solve(a, np.ones(20), check_finite=False, **how)).all():
        say(group, "NaN is lost")


grids = [tuple(map(int, grid.split("x"))) for grid in sys.argv[2:]]
for p, q in grids:
    group = everyone.split(int(everyone.rank < p * q), everyone.rank)
    if everyone.rank < p * q:
        cases = list(itertools.product(CASES, SUPPORTED))
        for case, dtype in cases[::3] if p * q == 4 else cases[5:11:5]:
            check(group, p, q, dtype, case)
        for dtype, lower in zip(SUPPORTED, (True, False, False, True), strict=True):
            if p * q == 4 or lower == (q > 1):
                check_cholesky(group, p, q, dtype, lower)
        for dtype in SUPPORTED if p * q == 4 else ("float64", "complex64"):
            check_dealt(group, p, q, dtype)
        check_permutations(group, p, q)
        if p * q == 4 or p > 1:
            check_tournament(group, p, q, "complex128" if p * q == 4 else "float64")
        check_refined(group, p, q)
        check_refusals(group, p, q)
finish(everyone)
