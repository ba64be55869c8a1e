"""CLBlast as a peer: measured where it runs, left out with a reason where it does not."""

import ctypes.util
import logging
import sys

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from bench import clblast
from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl import list_devices

DOUBLE = np.dtype("float64")


def devices():
    return [each.name for each in list_devices() if each.usable]


@pytest.mark.skipif(ctypes.util.find_library("clblast") is None, reason="libclblast is missing")
@pytest.mark.parametrize("dtype", clblast.SCALARS)
def test_clblast_runs_on_every_device_that_pyopencl_sees(dtype, caplog):
    for name in devices():
        with clblast.clblast_seconds(name, np.dtype(dtype), 96) as seconds:
            assert seconds is not None, caplog.text
            assert seconds() > 0


def script(monkeypatch, lines):
    """Let the peer's process be one that prints `lines` and ends."""
    real = clblast.subprocess.Popen
    code = f"import sys; sys.stdout.write({lines!r}); sys.stdout.flush()"
    code += "; sys.stdin.readline()" if lines else ""
    monkeypatch.setattr(
        clblast.subprocess, "Popen", lambda _, **kw: real([sys.executable, "-c", code], **kw)
    )
    monkeypatch.setattr(clblast.ctypes.util, "find_library", lambda _: "libclblast.so.1")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"failed": "CLBlastDgemm returned status -34"}\n', "status -34"),
        ('{"error": 1e9}\n', "wrong"),
        ('{"error": NaN}\n', "wrong"),
        ("", "process ended"),
    ],
)
def test_a_peer_that_does_not_run_is_left_out_with_its_reason(monkeypatch, caplog, lines, said):
    script(monkeypatch, lines)
    with (
        caplog.at_level(logging.WARNING),
        clblast.clblast_seconds(devices()[0], DOUBLE, 8) as seconds,
    ):
        assert seconds is None
    assert said in caplog.text


def test_a_process_that_dies_between_products_is_an_error_of_that_product(monkeypatch):
    script(monkeypatch, '{"error": 0.5}\n')
    with (
        clblast.clblast_seconds(devices()[0], DOUBLE, 8) as seconds,
        pytest.raises(DeviceError, match="ended"),
    ):
        seconds()


@pytest.mark.parametrize(
    ("name", "dtype"), [("opencl:0/2:0", "float64"), ("opencl:0", "complex128")]
)
def test_parts_and_complex_matrices_have_no_clblast(monkeypatch, name, dtype):
    script(monkeypatch, '{"error": 0.5}\n')
    with clblast.clblast_seconds(name, np.dtype(dtype), 8) as seconds:
        assert seconds is None
