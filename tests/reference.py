"""What every test judges a product by: a plain, slow GEMM and errors in units of their bound."""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "float64", "complex64", "complex128")


def op(x, trans):
    """op(X) by BLAS's codes: 0 or False as it is, 1 or True transposed, 2 conjugate transposed."""
    return (x, x.T, x.T.conj())[int(trans)]


def reference_gemm(alpha, a, b, beta=0.0, c=None):
    """C := alpha·A·B + beta·C, one product at a time, by the rules of reference BLAS.

    `a` (m×k) and `b` (k×n) are in op-space. alpha = 0 or k = 0 never reads A or B; beta = 0 never
    reads C. The products of one cell are added in the order of k.
    """
    operands = (a, b) if c is None else (a, b, c)
    dtype = np.result_type(*operands)
    m, k = a.shape
    n = b.shape[1]
    with np.errstate(all="ignore"):
        if beta == 0 or c is None:
            result = np.zeros((m, n), dtype)
        else:
            result = dtype.type(beta) * c.astype(dtype)
        if alpha == 0 or k == 0:
            return result
        total = np.zeros((m, n), dtype)
        for p in range(k):
            total += a[:, p, None].astype(dtype) * b[p, None, :].astype(dtype)
        return result + dtype.type(alpha) * total if beta != 0 else dtype.type(alpha) * total


#: Types with at least 11 bits more than the result's; BLAS multiplies float64 and complex128.
_WIDE = {"f": np.float64, "d": np.longdouble, "F": np.complex128, "D": np.clongdouble}


def _size(a, b):
    """Return |A|·|B|: by BLAS in float64, in long double where that overflows."""
    size = a.astype(np.float64) @ b.astype(np.float64)
    return size if np.isfinite(size).all() else a.astype(np.longdouble) @ b.astype(np.longdouble)


def worst_ratio(result, a, b, *, alpha=1.0, beta=0.0, c=None, tiny=None, where=True):
    """The largest componentwise error in units of its bound, over cells `where` all is finite.

    The unit is ``(k + 2)·eps·(|alpha|·|A|·|B| + |beta|·|C|)`` plus what underflow may lose; a sound
    product stays below 1. `tiny` is what one operation may lose to underflow: the smallest
    subnormal, or the smallest normal number on hardware that flushes subnormals to zero.
    """
    info = np.finfo(result.dtype)
    wide = _WIDE[result.dtype.char]
    k = a.shape[1]
    exact = np.zeros(result.shape, wide)
    size = np.zeros(result.shape, np.longdouble)
    with np.errstate(all="ignore"):
        if alpha != 0 and k:
            # Twice as fast in long double as `@`: both operands are read along k.
            exact += wide(alpha) * np.dot(a.astype(wide), np.asfortranarray(b.astype(wide)))
            size += abs(alpha) * _size(np.abs(a), np.abs(b))
        if beta != 0 and c is not None:
            exact += wide(beta) * c.astype(wide)
            size += abs(beta) * np.abs(c).astype(np.longdouble)
    lost = info.smallest_subnormal if tiny is None else tiny
    growth = 3.0 if result.dtype.kind == "c" else 1.0
    bound = (
        growth
        * (k + 2)
        * (np.longdouble(info.eps) * size + np.longdouble(lost) * max(1.0, abs(alpha)))
    )
    if result.size == 0:
        return 0.0
    with np.errstate(all="ignore"):
        ratio = np.abs(result.astype(wide) - exact) / bound
    return float(np.max(np.where(where, ratio, 0)))


def assert_close_in_eps(result, a, b, *, alpha=1.0, beta=0.0, c=None, units=1.0, tiny=None):
    """Hold `result` against alpha·A·B + beta·C, componentwise, in units of (k + 2)·eps·|A|·|B|.

    `a` (m×k) and `b` (k×n) are in op-space (see `op`), `c` is C as it was before. Cells that the
    reference leaves NaN or infinite must be so in `result` too, and only those (for real dtypes
    NaN, +Inf and -Inf are told apart, unless alpha is one: BLAS differs on when it is applied).
    """
    assert result.shape == (a.shape[0], b.shape[1])
    if _surely_finite(alpha, a, b, beta, c):
        expected, finite = None, np.ones(result.shape, bool)
    else:
        expected = reference_gemm(alpha, a, b, beta, c)
        finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(result), finite, err_msg="misplaced NaN or Inf")
    if not finite.all():
        if result.dtype.kind == "f" and np.isfinite(alpha):
            np.testing.assert_array_equal(result[~finite], expected[~finite].astype(result.dtype))
        a, b, c = _without_nonfinite(a), _without_nonfinite(b), _without_nonfinite(c)
    ratio = worst_ratio(result, a, b, alpha=alpha, beta=beta, c=c, tiny=tiny, where=finite)
    assert ratio <= units, f"worst error is {ratio:.3g} of (k+2)·eps·|A||B|, more than {units}"


def _surely_finite(alpha, a, b, beta, c):
    """Say whether no NaN is in the operands and no partial sum can overflow."""
    with np.errstate(all="ignore"):
        largest = [0.0 if x is None else np.abs(x).max(initial=0).astype(float) for x in (a, b, c)]
        factor, scale = abs(complex(alpha)), abs(complex(beta))
        sums = largest[0] * largest[1] * max(1, a.shape[1]) * (1 + factor)
        bound = 4 * (sums + largest[2] * (1 + scale))
    limit = np.finfo(np.result_type(*(x for x in (a, b, c) if x is not None))).max
    return bool(bound < limit / 4)


def _without_nonfinite(x):
    # A cell that came out finite read none of these, or only under alpha = 0 or beta = 0.
    return x if x is None else np.where(np.isfinite(x), x, x.dtype.type(0))
