"""Copies of matrices in memory."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hdgemm.matrices import transfer
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
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)
