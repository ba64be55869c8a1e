"""Memory of passes over rows, measured from outside: a call adds at most `host_memory`."""

import subprocess
import sys

import numpy as np
import pytest

LIMIT = 60_000_000
#: Pages of the interpreter and of BLAS's buffers, one for each thread, that only the larger call
#: touches: 58.8 MB of 60 MB were measured where BLAS had touched them before.
SLACK = 4 << 20
N = 300

_SCRIPT = """
import re, sys
from pathlib import Path
import hdgemm
from hdgemm import linalg
folder, limit, call = sys.argv[1:]
def peak():
    # Of this program alone: ru_maxrss begins with the peak of the process that forked it.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
def run(name):
    a, out = f"{folder}/{name}.npy", f"{folder}/{name}.out.npy"
    eval(call)
with hdgemm.set_options(host_memory=int(limit), threads=2, devices="host"):
    run("small")
    before = peak()
    run("large")
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("call", "order", "dtype"),
    [
        ("linalg.svd(a, out=(out, None, None))", "C", "float64"),
        ("linalg.pinv(a, out=out)", "F", "float32"),
        ("linalg.cov(a, rowvar=False, out=out)", "C", "float64"),
    ],
)
def test_passes_stay_within_host_memory(tmp_path, call, order, dtype):
    m = 76_800_000 // (N * np.dtype(dtype).itemsize)
    a = np.random.default_rng(0).standard_normal((m, N), dtype)
    np.save(tmp_path / "large.npy", np.asarray(a, order=order))
    np.save(tmp_path / "small.npy", np.asarray(a[:700, :70], order=order))
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path), str(LIMIT), call]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= LIMIT + SLACK
