"""Copies of matrices in memory."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hdgemm.matrices import _conversion_copy, transfer
from hdgemm.matrices._conversion_copy import copy_converted
from hdgemm.matrices.transfer import copy_transposed


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (16, 16), (37, 53), (53, 37)])
def test_transposing_copies_are_exact(monkeypatch, shape, dtype):
    monkeypatch.setattr(transfer, "_BAND_BYTES", 1 << 10)
    x = np.random.default_rng(0).random(shape).astype(dtype)
    columns, rows = np.empty((60, 60), dtype, "F")[3:, 2:], np.empty((60, 60), dtype)[5:, 1:]
    columns, rows = columns[: shape[0], : shape[1]], rows[: shape[0], : shape[1]]
    columns[...] = x
    copy_transposed(rows, columns)
    np.testing.assert_array_equal(rows, x)
    for diagonal in (None, *range(-shape[0] - 1, shape[1] + 2)):
        columns[...] = -1
        copy_transposed(columns, rows, diagonal)
        kept = np.ones(shape, bool) if diagonal is None else np.tri(*shape, diagonal, dtype=bool)
        np.testing.assert_array_equal(columns, np.where(kept, x, -1))


HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "to rows", "to columns", "wide"])
def test_every_float16_is_converted_as_by_numpy(monkeypatch, layout, finite):
    monkeypatch.setattr(_conversion_copy, "_STRIP", 1000)
    x = HALVES[np.isfinite(HALVES)] if finite else HALVES
    x = x.reshape(1 if layout == "wide" else 64, -1)
    out = np.full((2 * x.shape[0], 2 * x.shape[1]), -1, np.float32)
    out = out[::2, ::2] if layout == "strided" else out[: x.shape[0], : x.shape[1]].copy()
    if layout in ("columns", "to columns"):
        out = np.asfortranarray(out)
    if layout in ("columns", "to rows"):
        x = np.asfortranarray(x)
    copy_converted(out, x)
    with np.errstate(invalid="ignore"):  # AArch64 reports signalling NaNs
        expected = x.astype(np.float32)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


def test_a_signalling_nan_is_converted_without_a_warning():
    out = np.empty((1, 1))
    copy_converted(out, np.array([[0x7F800001]], np.uint32).view(np.float32))
    assert np.isnan(out)


def test_other_elements_are_converted_by_numpys_rule():
    x = HALVES[:600].reshape(20, 30)
    for source in (x, x.astype(">f2"), np.ones((20, 30), np.int8)):
        for dtype in ("f4", ">f4", "f8", "F"):
            out = np.empty((20, 30), dtype)
            copy_converted(out, source)
            np.testing.assert_array_equal(out, source.astype(dtype))
    copy_converted(np.empty((0, 3), np.float32), np.empty((0, 3), np.float16))
    with pytest.raises(TypeError, match="same_kind"):
        copy_converted(np.empty((20, 30), np.int64), x)


def test_a_pool_runs_after_interrupts_anywhere():
    """The first of a few dozen interrupts left a condition of `threading` locked."""
    script = """
        import random, signal
        from hdgemm.matrices.transfer import Pool

        signal.signal(signal.SIGALRM, signal.default_int_handler)
        pool, calls = Pool(4, "pool"), []
        for _ in range(1000):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 4e-4))
                while True:
                    pool.run([lambda _: None])
            except KeyboardInterrupt:
                pool.run([calls.append])
        assert len(calls) == 1000
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=400)
