"""A forked child refuses the devices it inherited, by name, and ends without blocking."""

import subprocess
import sys

import pytest

pytest.importorskip("pyopencl")

from hdgemm.pipeline.devices.opencl import list_devices

SCRIPT = """
import faulthandler, os, sys
import numpy as np
from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl import list_devices, open_device
from hdgemm.pipeline.devices.interchanges import moves_of
from hdgemm.pipeline.devices.protocol import Block, Tile, Triangle

name, busy = sys.argv[1], sys.argv[2] == "busy"
device, n, dtype = open_device(name), 400, np.dtype("float64")
x = np.ones((n, n))


def block(operand):
    nbytes = device.slot_bytes(operand, n, n, dtype)
    return Block(Tile(operand, device.allocate(nbytes), n, n, n, dtype), 0, 0, n, n)


a, b, c = map(block, "ABC")
staging = device.allocate_staging(64)
loaded = [device.upload(x, each, ()) for each in (a, b)]
product = device.gemm(1.0, a, b, 0.0, c, loaded)
product.wait()
pending = [device.gemm(1.0, a, b, 1.0, c, ()) for _ in range(50 if busy else 0)]
calls = {
    "allocate": lambda: device.allocate(8),
    "allocate_staging": lambda: device.allocate_staging(8),
    "free": lambda: device.free(staging),
    "upload": lambda: device.upload(x, a, ()),
    "gemm": lambda: device.gemm(1.0, a, b, 0.0, c, ()),
    "download": lambda: device.download(c, x, ()),
    "copy": lambda: device.copy(c, a, ()),
    "permute": lambda: device.permute(c, moves_of(np.array([1])), ()),
    "conjugate": lambda: device.conjugate(c, ()),
    "trsm": lambda: device.trsm(c, c, Triangle(), ()),
    "getrf": lambda: device.getrf(Block(c.tile, 0, 0, n, 8), ()),
    "geqrf": lambda: device.geqrf(Block(c.tile, 0, 0, n, 8), ()),
    "potrf": lambda: device.potrf(Block(c.tile, 0, 0, 8, 8), ()),
    "synchronize": device.synchronize,
    "wait": (pending or [product])[-1].wait,
    "open": lambda: open_device(name),
}
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)  # where a child blocks
    for what, call in calls.items():
        try:
            call()
        except DeviceError as error:
            assert f"this is its fork {os.getpid()}" in str(error), error
            assert error.process == os.getpid() != error.opened_by
        else:
            sys.exit(f"{what} was not refused")
    assert not list_devices()[0].usable
    device.close()
    event = (pending or [product])[-1].last
    held = sys.getrefcount(event)
    del device, a, b, c, staging, loaded, product, pending, calls
    assert sys.getrefcount(event) == held, "a driver's event was released"
    sys.exit(0)
status = os.waitpid(child, 0)[1]
assert status == 0, status
device.synchronize()
device.gemm(1.0, a, b, 0.0, c, ())
got = np.empty((n, n))
device.download(c, got, [device.gemm(1.0, a, b, 0.0, c, ())]).wait()
assert (got == n).all()
device.close()
"""


@pytest.mark.parametrize("name", [each.name for each in list_devices() if each.usable])
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_forked_child_refuses_by_name_and_ends(name, state):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, state],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


PRODUCTS = """
import faulthandler, os, sys
import numpy as np
import hdgemm
from hdgemm.errors import DeviceError

options = hdgemm.Options(devices=sys.argv[1])
x = np.ones((300, 300))
with hdgemm.Session(options) as session:
    hdgemm.matmul(x, x, session=session)
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        for arguments in ({"session": session}, {"options": options}):
            try:
                hdgemm.matmul(x, x, **arguments)
            except DeviceError as error:
                assert f"fork {os.getpid()}" in str(error), error
            else:
                sys.exit("not refused")
        assert (hdgemm.matmul(x, x) == 300).all()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    assert (hdgemm.matmul(x, x, session=session) == 300).all()
"""


@pytest.mark.parametrize("name", [each.name for each in list_devices() if each.usable])
def test_products_in_a_forked_child_are_refused_except_on_the_host(name):
    done = subprocess.run(
        [sys.executable, "-c", PRODUCTS, name],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
