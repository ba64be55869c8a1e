"""Run under mpiexec by test_slabs: LU by slabs on every grid; rank 0 prints what differs."""

import sys
from pathlib import Path

import numpy as np
import scipy.linalg

from hdgemm import linalg, mpi
from hdgemm.errors import DoesNotFitError, HdgemmError
from hdgemm.mpi import _run as run, _strips as strips
from hdgemm.mpi.communicator import world
from hdgemm.mpi.slabs.checkpoint import DurableFactors
from hdgemm.mpi.slabs.plan import fitting, slab_bytes
from hdgemm.mpi.variant import Variant
from hdgemm.options import Options
from tests.mpi.ranks import factor_ratio, finish, ratio, stored_pair, without_syncs

everyone, folder = world(), Path(sys.argv[1])
strips.STRIP_BYTES, run.GROUP = 2000, 16
without_syncs()


def say(group, *what):
    if group.rank == 0:
        print(*what)


def names(group):
    """Return the names of all files; no rank goes on before all have looked."""
    found = sorted(path.name for path in folder.iterdir())
    group.collect(None)
    return found


def limited(n, nb, grid, width, dtype):
    """Return options with which slabs have so many columns."""
    variant, size = Variant(n, nb, grid), np.dtype(dtype).itemsize
    limit = slab_bytes(variant, width, size)
    assert fitting(variant, size, limit).width == width
    return Options(host_memory=limit, threads=1)


def interrupted(group, method, at, call):
    """Call a function whose call number `at` of a method fails on the last rank."""
    original, count = getattr(DurableFactors, method), [0]

    def failing(self, *arguments, **keywords):
        count[0] += 1
        if count[0] == at:
            group.collect(None)
            error = HdgemmError("interrupted")
            error.__dict__["on_all_ranks"] = True
            raise error
        return original(self, *arguments, **keywords)

    setattr(DurableFactors, method, failing)
    try:
        call()
        say(group, f"{method} number {at} was not called")
    except HdgemmError as error:
        if "interrupted" not in str(error):
            say(group, error)
    finally:
        setattr(DurableFactors, method, original)


def check(group, grid, dtype, nb, width, columns, order):
    n = 3 * width + 3
    a, b = stored_pair(group, folder, dtype, n, columns, order)
    how = {"comm": group, "grid": grid, "nb": nb}
    small = how | {"options": limited(n, nb, grid, width, dtype)}
    where, name = folder / "A.npy", f"{grid} {dtype} n={n} nb={nb}"
    reports = []
    lu, piv = mpi.lu_factor(where, out=folder / "LU.npy", report=reports.append, **small)
    expected = mpi.lu_factor(where, out=folder / "M.npy", **how)
    if (piv != expected.piv).any() or (piv != scipy.linalg.lu_factor(a)[1]).any():
        say(group, name, "other pivots")
    if not factor_ratio(a, np.asarray(lu), piv) < 30:
        say(group, name, "P·A - L·U", factor_ratio(a, np.asarray(lu), piv))
    x = mpi.solve(where, folder / "B.npy", out=folder / "X.npy", **small)
    alone = linalg.lu_solve(linalg.open(folder / "LU.npy"), b)
    ratios = [ratio(a, np.asarray(each).reshape(b.shape), b) for each in (x, alone)]
    if not max(ratios) < 16:
        say(group, name, ratios)
    left = [each for each in names(group) if each.startswith(".")]
    if left:
        say(group, name, left)
    check_interruptions(group, name, small, (np.asarray(lu).tobytes(), np.asarray(x).tobytes()))


def check_interruptions(group, name, small, bits):
    """Slabs and strips that were finished stay; the same call goes on, to the same bits."""
    where, reports = folder / "A.npy", []

    def factor(**more):
        return mpi.lu_factor(where, out=folder / "LU.npy", report=reports.append, **small, **more)

    factor()
    for method, at in (("store", 2), ("_replace_turn", 1), ("_replace_turn", 2)):
        interrupted(group, method, at, lambda: factor(restart=True))
        again = factor()
        if np.asarray(again.lu).tobytes() != bits[0]:
            say(group, name, f"other bits after {method} {at}")
        kept, slabs = reports[-1].kept_slabs, reports[-1].slabs
        if kept != (1 if method == "store" else slabs) or not slabs > 1:
            say(group, name, f"{kept} slabs were kept of {slabs}")
        if not reports[-1].flops < reports[0].flops:
            say(group, name, "nothing was kept")
    interrupted(group, "store", 2, lambda: factor(restart=True))
    try:
        options = {"nb": small["nb"] - 1, "options": None}
        mpi.lu_factor(where, out=folder / "LU.npy", **small | options)
        say(group, name, "another block size goes on")
    except HdgemmError as error:
        if "nb" not in str(error):
            say(group, error)
    factor()

    def solve():
        return mpi.solve(where, folder / "B.npy", out=folder / "X.npy", **small)

    interrupted(group, "store", 2, solve)
    if np.asarray(solve()).tobytes() != bits[1]:
        say(group, name, "another solution after an interruption")


def check_cholesky(group, grid, dtype, nb, width, lower):
    """One triangle is read; the factor is one machine's, and the same bits go on."""
    n = 3 * width + 3
    a, _ = stored_pair(group, folder, dtype, n, 1, "C")
    spd = (a @ a.conj().T + np.eye(n)).astype(dtype)
    half = np.array(np.tril(spd) if lower else np.triu(spd), order="CF"[lower])
    half[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    small = {"comm": group, "grid": grid, "nb": nb} | {
        "options": limited(n, nb, grid, width, dtype)
    }
    name, reports = f"{grid} {dtype} lower={lower}: Cholesky", []
    if group.rank == 0:
        np.save(folder / "S.npy", half)
    group.collect(None)

    def factor(**more):
        how = {"out": folder / "C.npy", "report": reports.append, **small, **more}
        return np.asarray(mpi.cholesky(folder / "S.npy", lower, **how))

    c = factor()
    error = np.abs((c @ c.conj().T if lower else c.conj().T @ c) - spd).sum(axis=0).max()
    if not error < 30 * n * np.finfo(dtype).eps * np.abs(spd).sum(axis=0).max():
        say(group, name, error)
    if (np.tril(c) if not lower else np.triu(c, 1)).any() != (not lower):
        say(group, name, "the other triangle is not zero")
    found = linalg.open(folder / "C.npy")
    if found.lower != lower or np.asarray(found.c).tobytes() != c.tobytes():
        say(group, name, "opened as another factor")
    if not found.c.flags["F_CONTIGUOUS" if lower else "C_CONTIGUOUS"]:
        say(group, name, "a factor in the other order")
    bits = c.tobytes()
    interrupted(group, "store", 3, lambda: factor(restart=True))
    if factor().tobytes() != bits or reports[-1].kept_slabs != 2:
        say(group, name, "other bits after an interruption, or nothing was kept")
    group.collect(None)
    check_wrong_triangles(group, name, half, lower, small)


def check_solutions(group, grid, dtype, nb, width, lower):
    """Systems by Cholesky, and by factors in storage, of which the other triangle is not read."""
    n, columns = 3 * width + 3, 2 * width + 1
    a, b = stored_pair(group, folder, dtype, n, columns, "C")
    spd = (a @ a.conj().T + n * np.eye(n)).astype(dtype)
    half = np.array(np.tril(spd) if lower else np.triu(spd), order="CF"[lower])
    c = scipy.linalg.cholesky(spd, lower=lower)
    lu, piv = scipy.linalg.lu_factor(spd)
    for matrix in (half, c):
        matrix[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    if group.rank == 0:
        np.save(folder / "S.npy", half)
        np.save(folder / "C.npy", np.array(c, order="CF"[lower]))
        np.save(folder / "D.npy", np.asfortranarray(c))
        np.save(folder / "F.npy", np.asfortranarray(lu))
    small = {"comm": group, "grid": grid, "nb": nb, "out": folder / "X.npy"} | {
        "options": limited(n, nb, grid, width, dtype)
    }
    group.collect(None)
    where, name, reports = folder / "B.npy", f"{grid} {dtype} lower={lower}", []

    def solve(**more):
        how = {"assume_a": "pos", "report": reports.append, **small, **more}
        return np.asarray(mpi.solve(folder / "S.npy", where, lower, **how))

    x = solve()
    bits = x.tobytes()
    found = {
        "solve": x,
        "cho_solve": mpi.cho_solve((folder / "C.npy", lower), where, **small),
        "cho_solve of columns": mpi.cho_solve((folder / "D.npy", lower), where, **small),
        "lu_solve": mpi.lu_solve((folder / "F.npy", piv), where, **small),
    }
    for routine, each in found.items():
        if not ratio(spd, np.asarray(each), b) < 16:
            say(group, name, routine, ratio(spd, np.asarray(each), b))
    interrupted(group, "store", 2, lambda: solve(restart=True))
    if solve().tobytes() != bits or reports[-1].kept_slabs != 1:
        say(group, name, "another solution after an interruption, or nothing was kept")
    left = [each for each in names(group) if each.startswith(".")]
    if left:
        say(group, name, left)
    check_wrong_factors(group, name, c, lower, small)


def check_wrong_factors(group, name, c, lower, small):
    """Zeros on the diagonal and NaN in the triangle are named by their place."""
    n = len(c)
    row, col = (n - 2, 1) if lower else (1, n - 2)
    for place, value in (((n - 1, n - 1), 0), ((3, 3), 0), ((row, col), np.nan)):
        wrong = c.copy()
        wrong[place] = value
        try:
            mpi.cho_solve((wrong, lower), np.ones(n, c.dtype), **small)
            say(group, name, "a wrong factor was taken")
        except scipy.linalg.LinAlgError as error:
            if error.order != place[0] + 1:
                say(group, name, error)
        except ValueError as error:
            if (error.row, error.col) != place:
                say(group, name, error)


def check_wrong_triangles(group, name, half, lower, small):
    """A minor that is not positive definite leaves nothing; NaN is named by its place."""
    n = len(half)
    for (row, col), value in (((n - 2, n - 2), -1), ((n - 1, 1) if lower else (1, n - 1), np.nan)):
        before = names(group)
        wrong = half.copy()
        wrong[row, col] = value
        try:
            mpi.cholesky(wrong, lower, out=folder / "E.npy", restart=True, **small)
            say(group, name, "a wrong matrix was factored")
        except scipy.linalg.LinAlgError as error:
            group.collect(None)
            left = names(group)
            if error.order != n - 1 or left != before:
                say(group, name, error, left)
        except ValueError as error:
            if (error.row, error.col) != (row, col):
                say(group, name, error)
        group.collect(None)
    if group.rank == 0:
        for path in folder.glob("*E.npy*"):
            path.unlink()
    group.collect(None)


def check_errors(group, grid):
    """NaN is named by its place in A; a singular matrix leaves nothing; A may be too large."""
    n, nb, width = 40, 4, max(8, 4 * grid[1])
    small = {"comm": group, "grid": grid, "nb": nb, "options": limited(n, nb, grid, width, "f8")}
    a = np.random.default_rng(7).standard_normal((n, n))
    a[:, 21] = a[:, 20]
    singular, wrong = a.copy(), a.copy()
    singular[:, 20:22] = 0
    wrong[33, 17] = np.nan
    before = names(group)
    for matrix, attribute, value in ((singular, "order", 21), (wrong, "col", 17)):
        try:
            mpi.solve(matrix, np.ones(n), out=folder / "E.npy", restart=True, **small)
            say(group, f"{grid}: a wrong matrix was solved")
        except (scipy.linalg.LinAlgError, ValueError) as error:
            if getattr(error, attribute) != value:
                say(group, error)
        group.collect(None)
        left = [each for each in names(group) if each not in before]
        if left and attribute == "order":
            say(group, left)
    group.collect(None)
    if group.rank == 0:
        for path in folder.glob("*E.npy*"):  # the slabs before the NaN
            path.unlink()
    group.collect(None)
    try:
        tiny = small | {"options": Options(host_memory=4000)}
        mpi.lu_factor(a, out=folder / "T.npy", **tiny)
        say(group, "a slab without memory was factored")
    except DoesNotFitError as error:
        if error.missing <= 0:
            say(group, error)


for p, q in [tuple(map(int, grid.split("x"))) for grid in sys.argv[2:]]:
    group = everyone.split(int(everyone.rank < p * q), everyone.rank)
    if everyone.rank < p * q:
        if p * q == 4 or p > 1:
            check(group, (p, q), "float64", 5, 10 if q == 1 else 5 * q, 3, "C")
        if p * q == 4 or p == 1:
            check(group, (p, q), "complex64", 4, 8 if q == 1 else 4 * q, 0, "F")
        least = 4 * q * (2 if q == 1 else 1)
        for dtype, lower in (("float64", False), ("complex64", True), ("complex128", False)):
            if p * q == 4 or (dtype == "float64") == (p > 1):
                check_cholesky(group, (p, q), dtype, 4, least, lower)
                check_solutions(group, (p, q), dtype, 4, least, lower)
        check_errors(group, (p, q))
finish(everyone)
