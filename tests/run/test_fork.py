"""After a fork the host goes on, and devices with a driver refuse; neither blocks."""

import subprocess
import sys

import numpy as np
import pytest

from hdgemm.pipeline.devices.registry import list_devices

SCRIPT = """
import os, signal, sys
import numpy as np
import hdgemm

a, out, device = sys.argv[1:]
options = hdgemm.Options(devices=device, host_memory="4MB", tile=(100, 100, 100))
session = hdgemm.Session(options)
hdgemm.multiply(a, a, out=out, session=session)
hdgemm.multiply(a, a, out=out, options=options)
expected = np.load(out)
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
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
session.close()
"""


@pytest.mark.parametrize("device", [info.name for info in list_devices() if info.usable])
def test_a_forked_child_computes_or_refuses(device, tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((300, 300)))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "a.npy", tmp_path / "c.npy", device],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
