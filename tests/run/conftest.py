"""Matrices of the tests of runs that fail."""

import numpy as np
import pytest

from tests.run.folder import N


@pytest.fixture
def matrices(tmp_path):
    """A folder with the square matrices a.npy, b.npy and c.npy."""
    rng = np.random.default_rng(1)
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((N, N)))
    return tmp_path
