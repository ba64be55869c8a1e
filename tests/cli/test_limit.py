"""The memory limit holds where the kernel enforces it, and data is much larger than it."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.harness import MemoryCgroup
from hdgemm.matrices.random import random_matrix
from hdgemm.matrices.transfer import BOUNCE_BYTES
from hdgemm.verify import verify

HOST_MEMORY = 60_000_000
ALLOWANCE = 300_000_000
#: A takes more than the limit of the container; few columns keep the product short.
M, K, N = 10240, 5120, 96
#: Taken once by a process, whatever it multiplies: BLAS's buffers for each thread, and the
#: buffers of the threads that read and write files.
FIXED = 5_000_000 * (os.cpu_count() or 1) + BOUNCE_BYTES


def can_make_cgroups():
    v1 = Path("/sys/fs/cgroup/memory")
    if v1.exists():
        return os.access(v1, os.W_OK)
    return os.access("/sys/fs/cgroup/cgroup.subtree_control", os.W_OK)


@pytest.mark.skipif(not can_make_cgroups(), reason="needs the right to make a memory cgroup")
def test_a_product_finishes_under_a_container_s_limit(tmp_path):
    random_matrix(tmp_path / "A.npy", M, K, 1)
    random_matrix(tmp_path / "B.npy", K, N, 2)
    a, b, c, report = (tmp_path / name for name in ("A.npy", "B.npy", "C.npy", "report.json"))
    command = [sys.executable, "-m", "hdgemm", "multiply", a, b, "--out", c]
    command += ["--device", "host", "--host-memory", HOST_MEMORY, "--report", report, "--quiet"]
    with MemoryCgroup(HOST_MEMORY + ALLOWANCE) as cgroup:
        outcome = cgroup.run([str(word) for word in command], timeout=400)
    assert outcome.status == "done", outcome.stderr
    measured = json.loads(report.read_text())
    assert measured["peak_memory_bytes"] <= HOST_MEMORY + FIXED
    assert measured["plan"]["host_bytes"] <= HOST_MEMORY
    assert measured["moved_bytes"] == measured["planned_bytes"]
    assert np.load(c, mmap_mode="r").shape == (M, N)
    assert verify(a, b, c).passed
