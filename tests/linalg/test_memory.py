"""Memory of a factorisation, measured from outside: the process's peak resident set."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

N = 2400
LIMIT = 30_000_000
#: Pages of the interpreter and of BLAS that only the larger call touches.
SLACK = 12_000_000

#: The peak of this program alone: ru_maxrss begins with its parent process's peak.
_PEAK = """
import re
from pathlib import Path
def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024
"""

_SCRIPT = """
import functools, sys
import numpy as np
import hdgemm, hdgemm.linalg
folder, routine, memory = sys.argv[1:]
call = getattr(hdgemm.linalg, routine)
if routine == "qr":
    call = functools.partial(call, mode="raw")
call(folder + "/small.npy", out=folder + "/W.npy", options=hdgemm.Options(host_memory="40MB"))
print(peak())
call(folder + "/A.npy", out=folder + "/F.npy", options=hdgemm.Options(host_memory=int(memory)))
print(peak())
"""


def added_by(tmp_path, script, argument):
    """Return the bytes that a call of some order N adds to the peak of a process."""
    a = np.random.default_rng(0).standard_normal((N, N))
    a = a + a.T + 4 * N * np.eye(N)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "small.npy", a[:300, :300])
    # Freed blocks go back to the system, so that the peaks compare.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _PEAK + script, str(tmp_path), argument, str(LIMIT)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=Path.cwd()
    )
    warm, peak = map(int, done.stdout.split())
    return peak - warm


@pytest.mark.parametrize("routine", ["cholesky", "lu_factor", "qr"])
def test_host_memory_is_never_exceeded(tmp_path, routine):
    # The matrix takes 46 MB: held whole, beside the 4 MiB of transfers, it would exceed this.
    assert added_by(tmp_path, _SCRIPT, routine) < LIMIT + SLACK


_R_IN_ARRAY = """
import sys
import numpy as np
import hdgemm, hdgemm.linalg
folder, _, memory = sys.argv[1:]
small, a = np.load(folder + "/small.npy"), np.load(folder + "/A.npy")
out = np.ones(a.shape, order="F")
options = hdgemm.Options(host_memory=int(memory), devices="host")
hdgemm.linalg.qr(small, mode="r", options=options)
print(peak())
hdgemm.linalg.qr(a, mode="r", out=out, options=options)
print(peak())
assert not np.tril(out, -1).any()
"""


def test_r_in_an_array_needs_no_other_one_for_reflectors(tmp_path):
    assert added_by(tmp_path, _R_IN_ARRAY, "qr") < LIMIT + SLACK


_CALLS = {
    "syrk": "hdgemm.syrk(1.0, a, out=out, options=options)",
    "syr2k": "hdgemm.syr2k(1.0, a, a, out=out, options=options)",
    "symm": "hdgemm.symm(1.0, a, a, out=out, options=options)",
    "trmm": "hdgemm.trmm(1.0, a, a, out=out, options=options)",
    "trsm": "hdgemm.trsm(1.0, a, a, side=1, out=out, options=options)",
    "inv": "hdgemm.linalg.inv(a, out=out, options=options)",
    "lu": "hdgemm.linalg.lu(a, p_indices=True, out=(out, out + '.U.npy'), options=options)",
    "cond": "hdgemm.linalg.cond(a, options=options)",
    "sym": "hdgemm.linalg.solve(a, a, assume_a='sym', out=out, options=options)",
    "refine": "hdgemm.linalg.solve(a, a, refine='float32', out=out, options=options)",
}

_OTHERS = """
import sys
import hdgemm, hdgemm.linalg
folder, call, memory = sys.argv[1:]
def run(name, limit):
    a, out = f"{folder}/{name}.npy", f"{folder}/{name}.out.npy"
    options = hdgemm.Options(host_memory=limit, devices="host")
    eval(call)
run("small", 40_000_000)
print(peak())
run("A", int(memory))
print(peak())
"""


@pytest.mark.campaign
@pytest.mark.parametrize("routine", _CALLS)
def test_host_memory_of_the_other_routines(tmp_path, routine):
    assert added_by(tmp_path, _OTHERS, _CALLS[routine]) < LIMIT + SLACK
