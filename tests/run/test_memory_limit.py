"""The promise of `host_memory`: anonymous and shared pages that a run adds to its process.

They are measured from outside, for every format, conversion, beta, transposition and check. The
first products of a process load libraries, start threads and allocate BLAS's buffers, which belong
to no run; so each process computes small products first.
"""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

LIMIT = 60_000_000
N = 2000

CHILD = """
import sys
import numpy as np
import hdgemm

folder, limit = sys.argv[1], int(sys.argv[2])
options = {"devices": "host", "host_memory": limit}
square = np.ones((1500, 1500))
hdgemm.multiply(square, square, options=hdgemm.Options(devices="host", tile=(512, 512, 512)))
np.save(folder + "/small.npy", square[:64, :64])
for small in (folder + "/small.npy", folder + "/small.zarr", folder + "/small.h5::/x"):
    hdgemm.multiply(small, small, out=folder + "/small_out.npy", options=hdgemm.Options(**options))
del square
for line in sys.stdin:
    call = eval(line)
    settings = hdgemm.Options(**options, **call.pop("options", {}))
    print("ready", flush=True)
    sys.stdin.readline()
    hdgemm.multiply(**call, options=settings)
    print("done", flush=True)
"""


def own_bytes(pid):
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    counted = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(counted))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("operands")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, N))
    np.save(path / "x.npy", x)
    np.save(path / "y.npy", x[::-1])
    np.save(path / "f.npy", np.asfortranarray(x))
    np.save(path / "x4.npy", x.astype("float32"))
    return path


@pytest.fixture(scope="module")
def chunked(folder):
    """The same matrix compressed, in HDF5 and in Zarr, and a small one."""
    h5py, zarr = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    whole = np.load(folder / "x.npy")
    for name, x, size in (("x", whole, 256), ("small", whole[:64, :64], 32)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=x, chunks=(size, size), compression="gzip")
        path = folder / f"{name}.zarr"
        zarr.create_array(path, shape=x.shape, chunks=(size, size), dtype=x.dtype)[:] = x


@pytest.fixture
def peak(folder, chunked):
    """Return the peak in bytes of one call in a process of its own."""
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(folder), str(LIMIT)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def measure(**call):
        child.stdin.write(repr(call) + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n"
        before = most = own_bytes(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        done = threading.Event()
        thread = threading.Thread(target=lambda: (child.stdout.readline(), done.set()))
        thread.start()
        while not done.wait(0.002):
            most = max(most, own_bytes(child.pid))
        thread.join()
        return most - before

    with child:
        yield measure
        child.stdin.close()
    assert child.returncode == 0


CASES = {
    "npy": {"a": "x.npy", "b": "y.npy"},
    "beta": {"a": "x.npy", "b": "y.npy", "beta": 0.5, "c": "f.npy"},
    "transposed": {"a": "x.npy", "b": "y.npy", "trans_a": True, "trans_b": True},
    "Fortran order": {"a": "f.npy", "b": "y.npy"},
    "float32 to float64": {"a": "x4.npy", "b": "y.npy"},
    "float32": {"a": "x4.npy", "b": "x4.npy"},
    "checked tiles": {"a": "x.npy", "b": "y.npy", "options": {"verify": "tiles"}},
    "gzip in HDF5": {"a": "x.h5::/x", "b": "x.h5::/x"},
    "Zarr": {"a": "x.zarr", "b": "x.zarr"},
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("case", CASES)
def test_a_run_stays_within_host_memory(folder, peak, case):
    call = dict(CASES[case])
    for name in ("a", "b", "c"):
        if name in call:
            call[name] = f"{folder}/{call[name]}"
    assert peak(**call, out=f"{folder}/out.npy") <= LIMIT
