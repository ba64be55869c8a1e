"""Fixtures of the pipeline's tests."""

import pytest

from hdgemm.pipeline.devices.host_blas import SCIPY_SINGLE_THREADED, SINGLE_THREADED


@pytest.fixture(scope="module")
def one_blas_thread():
    """For tests of many tiny products: BLAS's threads wait for the next one in a loop."""
    with SINGLE_THREADED, SCIPY_SINGLE_THREADED:
        yield
