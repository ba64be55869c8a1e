"""LU by slabs over MPI: plans, and factors and solutions of matrices larger than the memory."""

import importlib.util

import numpy as np
import pytest

import hdgemm
from hdgemm import mpi
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.mpi.slabs.plan import Slabs, fitting, slab_bytes
from hdgemm.mpi.variant import Variant
from hdgemm.options import Options
from tests.mpi.ranks import CASES, MPIEXEC, mpiexec, ranks_of

parallel = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpi4py or mpiexec is missing: pip install 'hdgemm[mpi]' mpich",
)


@parallel
@pytest.mark.parametrize(("mpi", "grids"), CASES)
def test_slabs_on_every_grid(tmp_path, mpi, grids):
    """Factors, solutions, interruptions and errors; the same bits after an interruption."""
    done = mpiexec(
        ranks_of(grids),
        "-m",
        "mpi4py",
        "-m",
        "tests.mpi.slabs_child",
        str(tmp_path),
        *grids,
        mpi=mpi,
    )
    assert done.stdout.splitlines() == ["ok"], done.stderr


def test_rows_of_u_go_to_no_column_major_file(tmp_path):
    np.save(tmp_path / "S.npy", 300 * np.eye(300) + 1)
    variant = {"nb": 16, "grid": (1, 1)}
    options = Options(host_memory=slab_bytes(Variant(300, 16, (1, 1)), 64, 8), threads=1)
    out = f"{tmp_path}/U.bin::300x300:float64"
    with pytest.raises(InputError, match="slabs of U are whole rows"):
        mpi.cholesky(tmp_path / "S.npy", out=f"{out}:F", options=options, **variant)
    assert [path.name for path in tmp_path.iterdir()] == ["S.npy"]
    reports = []
    mpi.cholesky(tmp_path / "S.npy", out=out, options=options, report=reports.append, **variant)
    u = np.asarray(hdgemm.open(out))
    assert reports[0].slabs > 1
    assert np.allclose(u.T @ u, 300 * np.eye(300) + 1, atol=1e-11)


@pytest.mark.parametrize("n", [1, 7, 1000, 1013])
def test_slabs_cover_each_column_once(n):
    variant = Variant(n, 7, (3, 2))
    for count in (1, 2, 5):
        limit = slab_bytes(variant, -(-n // count), 8)
        if limit < slab_bytes(variant, 14, 8):
            with pytest.raises(DoesNotFitError):
                fitting(variant, 8, limit)
            continue
        slabs = fitting(variant, 8, limit)
        assert slab_bytes(variant, slabs.width, 8) <= limit
        assert slabs.width % 14 == 0
        columns = [col for first, last in slabs.spans for col in range(first, last)]
        assert columns == list(range(n))


def test_elements_that_are_read_again_follow_the_formula():
    n, width = 10**6, 10**4
    exact = sum(int((n - np.arange(first)).sum()) for first, _ in Slabs(n, width).spans)
    assert Slabs(n, width).streamed == pytest.approx(exact, rel=1e-4)
    assert exact == pytest.approx(n**3 / (3 * width), rel=0.03)


def test_a_slab_takes_about_the_memory_of_all_ranks():
    """W = P·M/(8n), less what streams."""
    n, memory, ranks = 10**6, 50 * 10**9, 64
    slabs = fitting(Variant(n, 192, (8, 8)), 8, memory)
    assert slabs.width <= ranks * memory / (8 * n)
    assert len(slabs.spans) == 3
    assert slab_bytes(Variant(n, 192, (8, 8)), n // 2, 8) > memory
