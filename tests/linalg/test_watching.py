"""Every factorisation and solve shows its progress where that is asked for."""

import inspect

import numpy as np
import pytest

from hdgemm import linalg
from hdgemm.errors import InputError

CALLS = sorted(
    name
    for name in linalg.__all__
    if inspect.isfunction(getattr(linalg, name))
    and "progress" in inspect.signature(getattr(linalg, name)).parameters
)


def test_the_calls_are_known():
    assert {"cholesky", "lu_factor", "lu_solve", "solve", "solve_triangular"} <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_progress_is_true_a_function_or_nothing(name):
    call = getattr(linalg, name)
    assert "bool" in str(inspect.signature(call).parameters["progress"].annotation)
    assert call.__wrapped__.__name__ == name


def test_a_factorisation_shows_its_progress(capsys):
    a = np.eye(8)
    linalg.cholesky(a, progress=True)
    assert "cholesky 100.0 %" in capsys.readouterr().err
    linalg.cholesky(a, progress=False)
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError, match="progress must be"):
        linalg.cholesky(a, progress=5)
