"""Copies that convert elements; float16 to float32 by its bits, which NumPy does one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HALF: Final = np.dtype(np.float16)
_SINGLE: Final = np.dtype(np.float32)
#: Bits of float16: its exponent, all of them set in Inf and NaN.
_EXPONENT: Final = np.uint16(0x7C00)
#: Places by which the significand of float32 is longer, and factor between the exponents' biases.
_SHIFT: Final = 13
_REBIASED: Final = np.float32(2.0**112)
#: Bits of float32 that a shifted float16 may have: sign, five places of the exponent, significand.
_SHIFTED: Final = np.int32(-0x70000001)
#: Elements that are converted at a time, in the cache.
_STRIP: Final = 1 << 16


def copy_converted(out: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy a matrix and convert its elements to `out`'s dtype, by NumPy's rule ``same_kind``."""
    if out.strides[0] < out.strides[1]:
        out, source = out.T, source.T
    by_rows = source.strides[0] >= source.strides[1]
    # Processors report signalling NaNs as invalid, some (AArch64) in float16, too.
    with np.errstate(invalid="ignore"):
        if source.dtype != _HALF or out.dtype != _SINGLE or not by_rows:
            np.copyto(out, source, casting="same_kind")
            return
        height = max(1, _STRIP // max(1, source.shape[1]))
        for top in range(0, len(source), height):
            _widen(out[top : top + height], source[top : top + height])


def _widen(out: NDArray[np.float32], source: NDArray[np.float16]) -> None:
    """Convert a strip: shift the bits, and multiply by the factor between the biases.

    The product is exact, subnormal numbers included. Inf and NaN are left to NumPy.
    """
    exponents = np.bitwise_and(source.view(np.uint16), _EXPONENT)
    if exponents.max(initial=0) == _EXPONENT:
        np.copyto(out, source)
        return
    bits = out.view(np.int32)
    np.left_shift(source.view(np.int16), _SHIFT, out=bits, dtype=np.int32)
    np.bitwise_and(bits, _SHIFTED, out=bits)
    np.multiply(out, _REBIASED, out=out)
