"""What others reach for the same product on the same machine: NumPy's BLAS, and CLBlast."""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import logging
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DeviceError
from hdgemm.pipeline.devices.opencl.clblast import SCALARS
from hdgemm.pipeline.devices.opencl.find import Name, locate
from hdgemm.pipeline.devices.opencl.platforms import pip_libraries, users_setting, vendor_folder
from hdgemm.pipeline.devices.opencl.tuning_process import is_wrong, random_matrix
from hdgemm.pipeline.plan import flops_per_multiply_add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG: Final = logging.getLogger(__name__)
_REPEATS: Final = 5
#: Longest that CLBlast may take to compile its kernels, or to multiply.
_PATIENCE_SECONDS: Final = 120


def peer_speeds(device: str, dtype: np.dtype[Any], n: int) -> dict[str, float]:
    """Return median GFLOP/s of an n×n×n product: ``"numpy"``, and ``"clblast"`` where it is."""
    rng = np.random.default_rng(n)
    a, b = (random_matrix(rng, (n, n), dtype) for _ in range(2))
    c = np.empty_like(a)
    flops = n**3 * flops_per_multiply_add(dtype.name)
    with ExitStack() as stack:
        contenders = {"numpy": lambda: _seconds(lambda: np.matmul(a, b, out=c))}
        clblast = stack.enter_context(clblast_seconds(device, dtype, n))
        if clblast is not None:
            contenders["clblast"] = clblast
        speeds = {}
        for name, seconds in contenders.items():
            try:
                speeds[name] = flops / _median(seconds) / 1e9
            except DeviceError as error:
                _LOG.warning("%s did not get through on %s: %s", name, device, error)
        return speeds


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _median(seconds: Callable[[], float]) -> float:
    return float(np.median([seconds() for _ in range(_REPEATS + 1)][1:]))


@contextlib.contextmanager
def clblast_seconds(
    device: str, dtype: np.dtype[Any], n: int
) -> Iterator[Callable[[], float] | None]:
    """Give what times one n×n×n product by CLBlast, as it comes: untuned, on random data.

    It runs in a process of its own (see `clblast`), whose result was compared with BLAS.

    Yields
    ------
    callable or None
        None where libclblast is not installed or does not run; for complex matrices, whose
        scalars ctypes cannot pass; and for parts of a device, which have no name of their own.
    """
    if (
        ctypes.util.find_library("clblast") is None
        or dtype.name not in SCALARS
        or Name.parse(device).parts > 1
    ):
        yield None
        return
    with _process(device, dtype, n) as process:
        try:
            error = _answer(process, "error")
        except DeviceError as refused:
            _LOG.warning("CLBlast is installed but does not run on %s: %s", device, refused)
            yield None
            return
        if is_wrong(error, dtype):
            _LOG.warning("CLBlast's product on %s is wrong by %.3g k·eps", device, error)
            yield None
            return
        yield lambda: _again(process)


@contextlib.contextmanager
def _process(device: str, dtype: np.dtype[Any], n: int) -> Iterator[subprocess.Popen[str]]:
    facts, _ = locate(device)
    command = [sys.executable, "-m", f"{__package__}.clblast", facts.platform, facts.device]
    with ExitStack() as stack:
        environment = dict(os.environ)
        if not users_setting():
            folder = stack.enter_context(vendor_folder(pip_libraries()))
            environment["OCL_ICD_VENDORS"] = str(folder)
        process = subprocess.Popen(
            [*command, dtype.name, str(n)], env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def _again(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None  # noqa: S101 - Popen was given pipes
    try:
        process.stdin.write("again\n")
    except BrokenPipeError as error:
        raise DeviceError("CLBlast's process ended") from error
    return _answer(process, "seconds")


def _answer(process: subprocess.Popen[str], what: str) -> float:
    assert process.stdout is not None  # noqa: S101 - Popen was given pipes
    ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_SECONDS)
    if not ready:
        raise DeviceError(f"CLBlast gave no answer in {_PATIENCE_SECONDS} s")
    line = process.stdout.readline()
    if not line:
        raise DeviceError("CLBlast's process ended")
    answer = json.loads(line)
    if "failed" in answer:
        raise DeviceError(answer["failed"])
    return float(answer[what])
