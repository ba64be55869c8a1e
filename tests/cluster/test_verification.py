"""The client's check of results: a worker that computes or stores wrong elements is found."""

import numpy as np
import pytest

import hdgemm
from hdgemm.cluster import cholesky, multiply, syrk
from hdgemm.errors import HdgemmError
from hdgemm.options import Options

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.usefixtures("many_blocks")
OPTIONS = Options(devices="host", host_memory="64MB", tile=(32, 32, 32), verify=True)
N = 96


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(9)
    for name in "ABC":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((N, N)))
    g = rng.standard_normal((N, N)) + 1j * rng.standard_normal((N, N))
    np.save(tmp_path / "S.npy", np.tril(g @ g.conj().T + N * np.eye(N)))
    return tmp_path


def calls(folder, client):
    a, b, c, s, out = (folder / f"{name}.npy" for name in "ABCSX")
    how = {"client": client, "options": OPTIONS, "out": out}
    return {
        "multiply": lambda: multiply(a, b, trans_a=1, beta=0.5, c=c, **how),
        "syrk, lower": lambda: syrk(2.0, a, 0.5, c, lower=1, **how),
        "syrk, upper": lambda: syrk(2.0, a, lower=0, trans=1, **how),
        "cholesky, lower": lambda: cholesky(s, True, **how),
        "cholesky, upper": lambda: cholesky(transposed(s), False, **how),
    }


def transposed(path):
    np.save(path.with_name("T.npy"), np.load(path).conj().T)
    return path.with_name("T.npy")


ROUTINES = ["multiply", "syrk, lower", "syrk, upper", "cholesky, lower", "cholesky, upper"]


def spoil(wrong):
    """Let this process store a wrong element in each block, or right ones again."""
    from hdgemm.cluster import _block_writer as block_writer

    original = getattr(block_writer.as_stored, "original", block_writer.as_stored)

    def spoiled(tile, dtype):
        stored = original(tile, dtype).copy()
        stored[-1, 0] += 1
        return stored

    spoiled.original = original
    block_writer.as_stored = spoiled if wrong else original


@pytest.mark.parametrize("routine", ROUTINES)
def test_a_right_result_passes(folder, client, routine):
    report = calls(folder, client)[routine]()
    assert report.verification["passed"]
    assert report.phases["verifying"] > 0


@pytest.mark.parametrize("routine", ROUTINES)
def test_a_wrong_result_is_not_published(folder, client, routine):
    client.run(spoil, True)
    try:
        with pytest.raises(HdgemmError, match="failed its check"):
            calls(folder, client)[routine]()
    finally:
        client.run(spoil, False)
    assert not (folder / "X.npy").exists()


def test_a_result_in_an_array_that_is_overwritten(folder, client):
    with hdgemm.create(folder / "X.npy", (N, N), order="F") as c:
        report = multiply(folder / "A.npy", folder / "B.npy", client=client, options=OPTIONS, out=c)
        assert report.verification["passed"]
