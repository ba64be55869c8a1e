"""In a forked child the host goes on, and devices with a driver refuse; neither blocks, also where
another thread computes.
"""

import subprocess
import sys

import numpy as np
import pytest

from hdgemm.pipeline.devices.registry import list_devices

SCRIPT = """
import os, signal, sys, threading
import numpy as np
import hdgemm
from hdgemm.matrices._hdf5 import LIBRARY_LOCK

a, out, device = sys.argv[1:]
options = hdgemm.Options(devices=device, host_memory="4MB", tile=(100, 100, 100))
session = hdgemm.Session(options)
hdgemm.multiply(a, a, out=out, session=session)
hdgemm.multiply(a, a, out=out, options=options)
expected = np.load(out)
hdgemm.create(f"{out}.h5::A", (3, 3)).close()
started, over = threading.Event(), threading.Event()

def observe(event):
    started.set()
    over.wait()

def work():  # holds the locks that the child inherits
    with LIBRARY_LOCK:
        hdgemm.multiply(a, a, out=out, session=session, observer=observe)

worker = threading.Thread(target=work)
worker.start()
started.wait()
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that blocks
    for keywords in ({"session": session}, {"options": options}):
        try:
            hdgemm.multiply(a, a, out=out, **keywords)
        except hdgemm.DeviceError as error:
            assert device != "host" and "fork" in str(error), error
        else:
            assert device == "host" and np.array_equal(np.load(out), expected)
    session.close()
    assert hdgemm.open(f"{out}.h5::A").shape == (3, 3)
    sys.exit(0)
try:
    assert os.waitpid(child, 0)[1] == 0
finally:
    over.set()
    worker.join()
session.close()
"""


@pytest.mark.parametrize("device", [info.name for info in list_devices() if info.usable])
def test_a_forked_child_computes_or_refuses(device, tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((300, 300)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "a.npy", tmp_path / "c.npy", device],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
