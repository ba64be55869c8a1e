"""The check reads files in pieces, within its memory, once each."""

import tracemalloc

import numpy as np
import pytest

from hdgemm.matrices.base import Matrix
from hdgemm.matrices.operands import open_operand
from hdgemm.product.product import check_product
from hdgemm.verify import verify
from hdgemm.verify._projection import Placement, project
from hdgemm.verify.check import conclude
from hdgemm.verify.freivalds import Check, CheckSettings
from tests.reference import DTYPES


class Counting(Matrix):
    """A stored matrix that counts the elements read from it; never an array to its reader."""

    array = None

    def __init__(self, values):
        self._matrix = open_operand(values).matrix
        assert not open_operand(values).trans
        self.name, self.shape, self.dtype = "counting", values.shape, values.dtype
        self.chunk = None
        self.elements = 0

    def phase(self, row, col):
        return 0

    def read(self, row, col, out):
        self.elements += out.size
        self._matrix.read(row, col, out)


def counted(values):
    operand = open_operand(values)
    return type(operand)(Counting(values))


def save(folder, name, values, order="C"):
    path = folder / f"{name}.npy"
    np.save(path, np.asarray(values, order=order))
    return path


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", DTYPES)
def test_files_are_checked_in_pieces(tmp_path, dtype, order):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((601, 503), (503, 307)))
    c = a @ b
    paths = [save(tmp_path, name, x, order) for name, x in (("a", a), ("b", b), ("c", c))]
    # 10 rows of A at a time, and 6 vectors.
    assert verify(*paths, memory=600_000).passed
    c[600, 306] += 3 * verify(*paths).detects
    paths[2] = save(tmp_path, "c", c, order)
    assert verify(*paths, memory=600_000).failing_rows == (600,)


def test_memmaps_and_paths_agree(tmp_path):
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((60, 50)), rng.standard_normal((50, 40))
    paths = [save(tmp_path, name, x) for name, x in (("a", a), ("b", b), ("c", a @ b))]
    mapped = [np.load(path, mmap_mode="r") for path in paths]
    assert verify(*paths, seed=1) == verify(*mapped, seed=1)


def test_memory_holds(tmp_path):
    rng = np.random.default_rng(3)
    n = 1500
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    paths = [save(tmp_path, name, x) for name, x in (("a", a), ("b", b), ("c", a @ b))]
    memory = 12_000_000
    tracemalloc.start()
    try:
        assert verify(*paths, memory=memory).passed
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The bounce buffers of reading files belong to the process, not to the check.
    assert peak <= memory + 17_000_000
    assert a.nbytes > memory


def verify_operands(a, b, c, *, alpha=1.0, beta=0.0, old=None):
    return conclude(Check(check_product(alpha, a, b, beta, old), c, CheckSettings()))


def test_each_matrix_is_read_once():
    rng = np.random.default_rng(4)
    a, b, old = (rng.standard_normal(s) for s in ((300, 200), (200, 250), (300, 250)))
    operands = [counted(x) for x in (a, b, a @ b + old, old)]
    *abc, before = operands
    assert verify_operands(*abc, beta=1.0, old=before).passed
    assert [x.matrix.elements for x in operands] == [
        x.matrix.shape[0] * x.shape[1] for x in operands
    ]


def test_the_old_c_is_not_read_for_beta_zero_nor_a_and_b_for_alpha_zero():
    rng = np.random.default_rng(5)
    a, b, old = (rng.standard_normal(s) for s in ((30, 20), (20, 25), (30, 25)))
    left, right, before = counted(a), counted(b), counted(old)
    assert verify_operands(left, right, open_operand(a @ b), beta=0.0, old=before).passed
    assert before.matrix.elements == 0
    left, right = counted(a), counted(b)
    scaled = open_operand(3 * old)
    assert verify_operands(left, right, scaled, alpha=0.0, beta=3.0, old=before).passed
    assert left.matrix.elements == right.matrix.elements == 0


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (700, 3), (3, 2100), (300, 1300)])
@pytest.mark.parametrize("memory", [2_000, 100_000, 10**9])
def test_a_projection_is_the_product_and_the_norms(shape, trans, memory):
    rng = np.random.default_rng(6)
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    operand = open_operand(x, trans=trans)
    seen = x.T if trans else x
    streamed = type(operand)(Counting(x), trans)
    vectors = rng.choice((-1.0, 1.0), size=(seen.shape[1], 4))
    weights = rng.random(seen.shape[1])
    for source in (operand, streamed):
        norms = project(source, vectors, memory=memory)
        np.testing.assert_allclose(norms.product, seen @ vectors, atol=1e-11)
        np.testing.assert_allclose(norms.sizes, np.linalg.norm(seen, axis=1), rtol=1e-13)
        assert not norms.bad_rows.any()
        assert not norms.bad_cols.any()
        sums = project(source, vectors, weights=weights, memory=memory)
        np.testing.assert_allclose(sums.sizes, np.abs(seen) @ weights, rtol=1e-12)
        assert sums.additions <= min(256, seen.shape[1]) + seen.shape[1]


def test_a_projection_finds_what_is_not_finite():
    x = np.ones((600, 700))
    x[300, 10], x[599, 699] = np.nan, -np.inf
    rows = np.zeros(600, np.bool_)
    rows[300] = True
    placement = Placement(rows, np.zeros(700, np.bool_), np.zeros(600, np.bool_))
    found = project(open_operand(x), np.ones((700, 1)), placement=placement, memory=10**6)
    assert list(np.flatnonzero(found.bad_rows)) == [300, 599]
    assert list(np.flatnonzero(found.bad_cols)) == [10, 699]
    # Row 300 holds one where all its elements should be so; row 599 one where none should.
    assert list(np.flatnonzero(found.misplaced_rows)) == [300, 599]
    assert found.product[300, 0] == 699
    assert found.sizes[599] == pytest.approx(np.sqrt(699))
