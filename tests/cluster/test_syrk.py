"""Rank-k updates of one triangle of C on a cluster."""

import threading

import numpy as np
import pytest

import hdgemm
from hdgemm.cluster import syrk
from hdgemm.cluster.blocks import triangle_region
from hdgemm.durable.audit import audit
from hdgemm.errors import CancelledRunError, InputError
from hdgemm.options import Options
from tests.cluster.processes import pieces
from tests.reference import assert_close_in_eps

OPTIONS = Options(devices="host", host_memory="64MB", tile=(16, 100, 100))
N, K = 130, 40


@pytest.fixture
def few_squares(monkeypatch, many_blocks):
    monkeypatch.setattr("hdgemm.cluster.blocks._DIAGONAL_BLOCKS", 8)


@pytest.fixture
def case(tmp_path):
    a = np.random.default_rng(1).standard_normal((N, K))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "T.npy", np.ascontiguousarray(a.T))
    return tmp_path, a


def assert_triangle(found, a, lower, *, other=0.0, **scalars):
    part = np.tril if lower else np.triu
    outside = np.triu(found, 1) if lower else np.tril(found, -1)
    mask = np.triu(np.ones((N, N)), 1) if lower else np.tril(np.ones((N, N)), -1)
    assert np.array_equal(outside, other * mask)
    whole = part(found) + part(found, -1 if lower else 1).T
    assert_close_in_eps(whole, a, a.T, **scalars)


@pytest.mark.parametrize("n", [1, 5, 130, 1000])
@pytest.mark.parametrize("quantum", [(1, 1), (1, 16), (4, 6)])
@pytest.mark.parametrize("lower", [True, False])
def test_the_region_is_the_triangle_and_few_elements_more(n, quantum, lower):
    covered = np.zeros((n, n), int)
    for row, col, rows, cols in triangle_region(n, quantum, lower=lower):
        covered[row : row + rows, col : col + cols] += 1
        assert row % quantum[0] == col % quantum[1] == 0
    mask = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
    assert (covered[mask] == 1).all()
    assert covered.max() == 1
    assert covered.sum() <= mask.sum() + n * max(16, n // 64 + 1)


@pytest.mark.parametrize(("lower", "trans"), [(0, 0), (1, 0), (1, 1)])
@pytest.mark.usefixtures("few_squares")
def test_a_triangle_of_a_new_file(client, case, lower, trans):
    folder, a = case
    name = folder / ("T.npy" if trans else "A.npy")
    report = syrk(
        1.5, name, trans=trans, lower=lower, client=client, out=folder / "C.npy", options=OPTIONS
    )
    assert_triangle(np.load(folder / "C.npy"), a, lower, alpha=1.5)
    assert audit(folder / "C.npy").passed
    assert report.stages["mult1"].flops < 1.2 * N * N * K
    assert sum(share.used for share in report.split.shares.values()) == pytest.approx(1)


@pytest.mark.usefixtures("few_squares")
def test_the_other_triangle_of_a_matrix_that_exists_stays(client, case):
    folder, a = case
    old = np.random.default_rng(2).standard_normal((N, N))
    old += old.T
    np.save(folder / "O.npy", old)
    for order in "CF":
        with hdgemm.create(folder / f"{order}.npy", (N, N), order=order) as c:
            c[:, :] = np.full((N, N), 7.0)
            syrk(1.0, folder / "A.npy", -0.5, folder / "O.npy", lower=1,
                                 client=client, out=c, options=OPTIONS)  # fmt: skip
            assert_triangle(np.asarray(c), a, lower=True, other=7.0, beta=-0.5, c=old)


@pytest.mark.usefixtures("few_squares")
def test_a_run_that_is_cut_off_goes_on(client, case):
    folder, a = case
    cancel = threading.Event()
    call = {"lower": 1, "client": client, "out": folder / "C.npy", "options": OPTIONS}
    with pytest.raises(CancelledRunError):
        syrk(1.0, folder / "A.npy", cancel=cancel, progress=lambda _: cancel.set(), **call)
    with pytest.raises(InputError, match="triangle"):
        syrk(1.0, folder / "A.npy", **(call | {"lower": 0}))
    assert syrk(1.0, folder / "A.npy", **call).resumption.kept > 0
    assert_triangle(np.load(folder / "C.npy"), a, lower=True)
    count = np.zeros((N, N), int)
    for row, col, rows, cols in pieces(folder / ".C.npy.hdgemm-journal"):
        count[row : row + rows, col : col + cols] += 1
    assert count.max() == 1
    assert syrk(1.0, folder / "A.npy", **call).resumption.finished


def test_what_it_refuses(client, case):
    folder, a = case
    with pytest.raises(InputError, match="lies in this process"):
        syrk(1.0, a, client=client, out=folder / "C.npy")
    with pytest.raises(InputError, match="leave client out"):
        syrk(0.0, folder / "A.npy", client=client, out=folder / "C.npy")
    c = hdgemm.create(folder / "D.npy", (N, N))
    with c, pytest.raises(InputError, match="cannot update C in place"):
        syrk(1.0, folder / "A.npy", 1.0, c, client=client, out=c)
