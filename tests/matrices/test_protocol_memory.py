"""Memory of NumPy's operators and functions on stored matrices, measured from outside.

Each group of operations has a process of its own, whose peak says whether one of them takes more
than `host_memory`. Results that are larger are refused.
"""

import subprocess
import sys

import numpy as np
import pytest

import hdgemm

LIMIT = 60_000_000
#: Pages of the interpreter and of BLAS that only the larger call touches: more in factorisations.
SLACK = {"wide": 2 << 20, "square": 8 << 20, "tall": 2 << 20}
#: Shapes of the matrices, of 100 MB at least, and of those that the operations are warmed up with.
SHAPES = {
    "wide": (6000, 4000),
    "square": (3600, 3600),
    "tall": (220_000, 60),
    "small-wide": (70, 60),
    "small-square": (300, 300),
    "small-tall": (3000, 30),
}

CHILD = """
import re, sys
from pathlib import Path
import numpy as np
import hdgemm
small, path, limit = *sys.argv[1:3], int(sys.argv[3])
b, v, c = np.ones((4000, 8)), np.ones(220_000), np.ones((6000, 8))
def refused(call):
    def run(m):
        try:
            found = call(m)
        except (TypeError, hdgemm.DoesNotFitError) as error:
            return
        assert m.nbytes < limit, found
    return run
operations = {
    "norm": np.linalg.norm, "norm 1": lambda m: np.linalg.norm(m, 1),
    "norm inf": lambda m: np.linalg.norm(m, np.inf), "norm 2": lambda m: np.linalg.norm(m, 2),
    "matmul": lambda m: m @ b[: m.shape[1]], "vector": lambda m: m @ v[: m.shape[1]],
    "left": lambda m: c[: len(m)].T @ m, "dot": lambda m: np.dot(m, b[: m.shape[1]]),
    "dot vector": lambda m: np.dot(v[: len(m)], m), "inner": lambda m: np.inner(m[:9], m),
    "out": lambda m: np.matmul(m, b[: m.shape[1]], out=np.empty((len(m), 8))),
    "element": lambda m: m[3, 4], "row": lambda m: m[5], "column": lambda m: m[:, 5],
    "slice": lambda m: m[50:70, 5:].read(), "steps": lambda m: m[::900, ::7].read(),
    "iterate": lambda m: sum(row[0] for row in m),
    "blocks": lambda m: sum(block[0, 0] for _, block in m.blocks()),
    "solve": lambda m: np.linalg.solve(m, v[: len(m)]),
    "solve columns": lambda m: np.linalg.solve(m, c[: len(m)]),
    "det": np.linalg.det, "slogdet": np.linalg.slogdet,
    "qr r": lambda m: np.linalg.qr(m, mode="r"), "svdvals": np.linalg.svdvals,
    "svd values": lambda m: np.linalg.svd(m, compute_uv=False),
    "lstsq": lambda m: np.linalg.lstsq(m, v[: len(m)]),
    "exp": refused(np.exp), "asarray": refused(np.asarray), "m @ m.T": refused(lambda m: m @ m.T),
    "multiple": refused(lambda m: 2 * m), "qr": refused(np.linalg.qr),
    "svd": refused(lambda m: np.linalg.svd(m, full_matrices=False)),
    "pinv": refused(np.linalg.pinv), "inv": refused(np.linalg.inv),
    "cholesky": refused(np.linalg.cholesky),
}
def peak():
    # Of this program alone: ru_maxrss begins with the peak of the process that forked it.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10
with hdgemm.set_options(host_memory=limit, devices="host"):
    hdgemm.matmul(np.ones((700, 700)), np.ones((700, 700)), options=hdgemm.Options())
    for name in sys.argv[4:]:
        operations[name](hdgemm.open(small))
    before = peak()
    for name in sys.argv[4:]:
        operations[name](hdgemm.open(path))
        print(name, peak() - before, sep="=")
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a function that makes a file once; square matrices are positive definite."""
    folder = tmp_path_factory.mktemp("stored")

    def make(kind):
        path, (m, n) = folder / f"{kind}.npy", SHAPES[kind]
        if not path.exists():
            with hdgemm.create(path, (m, n)) as file:
                for rows, _ in file.blocks():
                    file[rows] = np.eye(rows.stop - rows.start, n, rows.start) * m + 1
        return path

    return make


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("wide", ("norm", "norm 1", "norm inf", "matmul", "vector", "left", "dot", "inner", "row")),
        ("wide", ("iterate",)),
        ("wide", ("blocks",)),
        ("wide", ("element", "column", "slice", "steps", "exp", "asarray", "multiple")),
        ("square", ("out", "solve", "solve columns", "solve", "solve columns")),
        ("square", ("det", "slogdet", "det")),
        ("square", ("inv", "cholesky", "qr", "svd", "pinv")),
        ("tall", ("norm 2", "svdvals", "svd values", "qr r", "lstsq", "dot vector")),
        ("tall", ("qr", "svd", "pinv", "m @ m.T", "blocks")),
    ],
)
def test_no_operation_takes_more_than_host_memory(stored, kind, names):
    files = [str(stored(name)) for name in (f"small-{kind}", kind)]
    command = [sys.executable, "-c", CHILD, *files, str(LIMIT), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = [line.split("=") for line in done.stdout.splitlines()]
    assert [name for name, _ in peaks] == list(names)
    # The peak of the process: an operation that takes more raises it for those after it, too.
    assert all(int(nbytes) <= LIMIT + SLACK[kind] for _, nbytes in peaks), peaks
