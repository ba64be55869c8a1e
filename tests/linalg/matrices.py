"""Test matrices and LAPACK's ratios: residuals in units of n·||A||·eps, sound below 30."""

import numpy as np

DTYPES = ("float32", "float64", "complex64", "complex128")
SOUND = 30.0


def random_matrix(rows, cols, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal((rows, cols))
    return x.astype(dtype)


def positive_definite(n, dtype, seed=0):
    x = random_matrix(n, n, dtype, seed)
    return (x @ x.conj().T + n * np.eye(n)).astype(dtype)


def norm1(x):
    return float(np.abs(x).sum(axis=0).max(initial=0.0))


def residual_ratio(error, a):
    """Return ||error|| / (n·||A||·eps) in 1-norms, with eps half of NumPy's."""
    n = max(1, *a.shape)
    unit = n * norm1(a) * np.finfo(a.dtype).eps / 2
    return norm1(error) / unit if unit else norm1(error)


def widened(x):
    return x.astype("complex128" if x.dtype.kind == "c" else "float64")
