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


ITERATORS = """
import os, signal, sys
import hdgemm

a = hdgemm.open(sys.argv[1])
options = hdgemm.Options(tile=(100, 100, 100), threads=1)  # OpenBLAS cannot fork among its own
begun = [hdgemm.stream(a, a, options=options), a.blocks(100), iter(a)]
for each in begun:
    next(each)
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that blocks
    for each in begun:
        try:
            list(each)
        except hdgemm.InputError as error:
            assert error.begun_by == os.getppid() and error.process == os.getpid()
        else:
            raise AssertionError("a child read what its parent's threads read")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert [len(list(each)) for each in begun] == [8, 2, 299]
"""


def test_iterators_refuse_in_a_forked_child_and_go_on_in_the_parent(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((300, 300)))
    done = subprocess.run(
        [sys.executable, "-c", ITERATORS, tmp_path / "a.npy"],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


UNFINISHED = """
import math, sys
import hdgemm
from hdgemm.run import session

session._LAST_SECONDS = math.inf
a = hdgemm.open(sys.argv[1])
tiles = hdgemm.stream(a, a, options=hdgemm.Options(tile=(100, 100, 100)))
next(tiles)
"""


def test_an_interpreter_ends_with_a_stream_that_is_not_at_its_end(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((300, 300)))
    subprocess.run([sys.executable, "-c", UNFINISHED, tmp_path / "a.npy"], timeout=120, check=True)


VERSIONS = """
import sys
started = []
sys.addaudithook(lambda name, _: started.append(name) if name == "subprocess.Popen" else None)
from hdgemm.report import versions
assert versions()["platform"].startswith("Linux-")
assert not started
"""


@pytest.mark.skipif(sys.platform != "linux", reason="names Linux")
def test_the_platform_of_a_report_is_found_without_a_lock():
    subprocess.run([sys.executable, "-c", VERSIONS], timeout=400, check=True)
