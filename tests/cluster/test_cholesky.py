"""Cholesky factors computed by the workers of a cluster, from storage to storage."""

import threading

import numpy as np
import pytest

import hdgemm
from hdgemm.cluster import cholesky
from hdgemm.durable.audit import audit
from hdgemm.errors import CancelledRunError, InputError
from hdgemm.fortran import SingularMatrixError
from hdgemm.options import Options
from tests.cluster.processes import pieces

pytestmark = pytest.mark.usefixtures("many_blocks")
N = 150
OPTIONS = Options(devices="host", host_memory="64MB", tile=(64, 32, 64))


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def positive(dtype="float64"):
    rng = np.random.default_rng(7)
    g = rng.standard_normal((N, N)).astype(dtype)
    if g.dtype.kind == "c":
        g += 1j * rng.standard_normal((N, N)).astype(g.real.dtype)
    return g @ g.conj().T + N * np.eye(N, dtype=dtype)


def assert_factor(a, found, lower):
    """LAPACK's ratio: ‖A − L·L^H‖ / (n·‖A‖·eps) is below 30."""
    factor = np.asarray(found) if lower else np.asarray(found).conj().T
    assert np.array_equal(factor, np.tril(factor))
    eps = np.finfo(a.dtype).eps / 2
    norm = np.linalg.norm(a - factor @ factor.conj().T, 1)
    assert norm / (N * np.linalg.norm(a, 1) * eps) < 30


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_a_factor_from_file_to_file(client, folder, lower, dtype):
    a = positive(dtype)
    stored = a.copy()
    # The other triangle is not used.
    stored[np.triu_indices(N, 1) if lower else np.tril_indices(N, -1)] = np.nan
    np.save(folder / "A.npy", stored)
    report = cholesky(folder / "A.npy", lower, client=client, out=folder / "L.npy", options=OPTIONS)
    assert_factor(a, np.load(folder / "L.npy"), lower)
    assert audit(folder / "L.npy").passed
    assert report.plan["blocks"] >= 2 * (N // 32)
    assert report.stages["mult1"].flops >= report.plan["n"] ** 3 / 3
    assert {event.device for event in report.timeline.events} == set(report.devices)
    again = cholesky(folder / "A.npy", lower, client=client, out=folder / "L.npy", options=OPTIONS)
    assert again.resumption.finished


def test_a_factor_in_a_zarr_array(client, folder):
    a = positive()
    np.save(folder / "A.npy", a)
    cholesky(folder / "A.npy", client=client, out=f"{folder}/S.zarr::U", options=OPTIONS)
    with hdgemm.open(f"{folder}/S.zarr::U") as u:
        assert_factor(a, np.asarray(u), lower=False)


def test_a_run_that_is_cut_off_goes_on_and_computes_nothing_twice(client, folder):
    a = positive()
    np.save(folder / "A.npy", a)
    call = {"lower": True, "client": client, "out": folder / "L.npy", "options": OPTIONS}
    for blocks in (1, 4):
        cancel = threading.Event()

        def stop(progress, cancel=cancel, blocks=blocks):
            if progress.steps >= blocks:
                cancel.set()

        with pytest.raises(CancelledRunError):
            cholesky(folder / "A.npy", cancel=cancel, progress=stop, **call)
    assert not (folder / "L.npy").exists()
    shown = []
    report = cholesky(folder / "A.npy", progress=shown.append, **call)
    assert report.resumption.kept >= 5
    assert shown[-1].percent == pytest.approx(100)
    assert_factor(a, np.load(folder / "L.npy"), lower=True)
    count = np.zeros((N, N), int)
    for row, col, rows, cols in pieces(folder / ".L.npy.hdgemm-journal"):
        count[row : row + rows, col : col + cols] += 1
    assert count.max() == 1
    assert (count[np.tri(N, dtype=bool)] == 1).all()


def test_a_matrix_without_a_factor_says_where(client, folder):
    a = positive()
    a[40, 40] = -1.0
    np.save(folder / "A.npy", a)
    with pytest.raises(SingularMatrixError, match="order 41") as found:
        cholesky(folder / "A.npy", True, client=client, out=folder / "L.npy", options=OPTIONS)
    assert found.value.order == 41
    a[100, 3] = np.nan
    np.save(folder / "A.npy", a)
    with pytest.raises(InputError, match="row 100, column 3"):
        cholesky(folder / "A.npy", True, client=client, out=folder / "L.npy", options=OPTIONS,
                 restart=True)  # fmt: skip
    assert not (folder / "L.npy").exists()


def test_what_it_refuses(client, folder):
    a = positive()
    np.save(folder / "A.npy", a)
    np.save(folder / "B.npy", a[:, :9])
    with pytest.raises(InputError, match="lies in this process"):
        cholesky(a, client=client, out=folder / "L.npy")
    with pytest.raises(InputError, match="square"):
        cholesky(folder / "B.npy", client=client, out=folder / "L.npy")
    with pytest.raises(InputError, match="location of a new file"):
        cholesky(folder / "A.npy", client=client, out=a)
    with pytest.raises(InputError, match="always keeps a journal"):
        cholesky(folder / "A.npy", client=client, out=folder / "L.npy", checkpoint=False)
