"""CLBlast beside the tuned kernel: measured where it is, left out with a reason where it is not."""

import ctypes.util
import logging
import sys

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl import peers
from hdgemm.pipeline.devices.opencl.clblast import SCALARS
from hdgemm.pipeline.devices.opencl.find import list_devices

DOUBLE = np.dtype("float64")


def devices():
    return [each.name for each in list_devices() if each.usable]


@pytest.mark.skipif(ctypes.util.find_library("clblast") is None, reason="libclblast is missing")
@pytest.mark.parametrize("dtype", SCALARS)
def test_clblast_runs_on_every_device_that_pyopencl_sees(dtype, caplog):
    for name in devices():
        with peers.clblast_seconds(name, np.dtype(dtype), 96) as clblast:
            assert clblast is not None, caplog.text
            assert clblast() > 0


def script(monkeypatch, lines):
    """Let the peer's process be one that prints `lines` and ends."""
    real = peers.subprocess.Popen
    code = f"import sys; sys.stdout.write({lines!r}); sys.stdout.flush()"
    code += "; sys.stdin.readline()" if lines else ""
    monkeypatch.setattr(
        peers.subprocess, "Popen", lambda _, **kw: real([sys.executable, "-c", code], **kw)
    )
    monkeypatch.setattr(peers.ctypes.util, "find_library", lambda _: "libclblast.so.1")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"failed": "CLBlastDgemm returned status -34"}\n', "status -34"),
        ('{"error": 1e9}\n', "wrong"),
        ('{"error": NaN}\n', "wrong"),
        ("", "process ended"),
    ],
)
def test_what_does_not_run_is_left_out_with_its_reason(monkeypatch, caplog, lines, said):
    script(monkeypatch, lines)
    with (
        caplog.at_level(logging.WARNING),
        peers.clblast_seconds(devices()[0], DOUBLE, 8) as clblast,
    ):
        assert clblast is None
    assert said in caplog.text


def test_a_process_that_dies_between_products_costs_no_other_peer(monkeypatch, caplog):
    script(monkeypatch, '{"error": 0.5}\n')
    with (
        peers.clblast_seconds(devices()[0], DOUBLE, 8) as clblast,
        pytest.raises(DeviceError, match="ended"),
    ):
        clblast()
    assert set(peers.peer_speeds(devices()[0], DOUBLE, 8)) == {"numpy"}
    assert "clblast" in caplog.text


@pytest.mark.parametrize(
    ("name", "dtype"), [("opencl:0/2:0", "float64"), ("opencl:0", "complex128")]
)
def test_parts_and_complex_matrices_are_not_asked_of_it(monkeypatch, name, dtype):
    script(monkeypatch, '{"error": 0.5}\n')
    with peers.clblast_seconds(name, np.dtype(dtype), 8) as clblast:
        assert clblast is None
