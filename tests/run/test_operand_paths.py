"""Which operands move by DMA, which are used in place, and which are staged."""

import numpy as np
import pytest

from hdgemm.matrices.arrays import ArrayMatrix
from hdgemm.matrices.base import Operand
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.product.product import Product
from hdgemm.run.operand_paths import problem_on
from tests.pipeline.devices.cuda.cuda_bench import Bench, own_pages, page_locked


def product(a, b, c, *, beta=0.0, conj=False):
    old = Operand(ArrayMatrix(c)) if beta else None
    left = Operand(ArrayMatrix(a), conj=conj)
    right, out = Operand(ArrayMatrix(b)), Operand(ArrayMatrix(c))
    return Product(left, right, out, old, 1.0, beta, np.dtype(c.dtype), np.dtype(c.dtype))


def arrays(n=64, dtype="float64"):
    return [own_pages(np.ones((n, n), dtype)) for _ in range(3)]


def paths(work, device, **which):
    problem = problem_on(work, device, **which)
    return [problem.spec(name).path for name in "ABC"]


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.device.close()


def test_page_locked_arrays_go_directly_and_others_are_staged(bench):
    a, b, c = arrays()
    assert paths(product(a, b, c), bench.device) == ["staged"] * 3
    with page_locked(bench.standin, a, c):
        assert paths(product(a, b, c), bench.device) == ["direct", "staged", "direct"]
        assert paths(product(a, b, c), bench.device, direct="AB") == ["direct", "staged", "staged"]
        assert paths(product(a, b, c), bench.device, direct="") == ["staged"] * 3
    assert bench.standin.count("hostRegister") == 1 + 1  # the library locks nothing itself


def test_what_dma_cannot_take_is_staged(bench):
    a, b, c = arrays()
    single = own_pages(np.ones((64, 64), "float32"))
    with page_locked(bench.standin, a, b, c, single):
        device = bench.device
        assert paths(product(a, b[::-1], c), device) == ["direct", "staged", "direct"]
        assert paths(product(a, b.T, c), device) == ["direct", "staged", "direct"]
        assert paths(product(a, single, c), device) == ["direct", "staged", "direct"]  # converted
        assert paths(product(a, b, c, conj=True), device) == ["staged", "direct", "direct"]
        assert paths(product(a, b, c, beta=1.0), device) == ["direct", "direct", "staged"]


def test_the_host_needs_no_paths():
    assert paths(product(*arrays()), HostDevice()) == ["resident"] * 3


def pages(rows=8):
    """Rows of one page each, on page boundaries: arrays that share no page."""
    return own_pages(np.zeros((rows, 512)))


def test_an_array_is_reached_only_where_all_of_it_is_page_locked(bench):
    x = pages()
    with page_locked(bench.standin, x[:2], x[6:]):
        assert bench.device.reaches(x[:2])
        assert not bench.device.reaches(x)  # both ends are page-locked, the middle is not
        assert not bench.device.reaches(x[1:4])
        assert not bench.device.reaches(np.zeros(3))
        assert not bench.device.reaches(x[:0])
    assert not bench.device.reaches(x[:2])
