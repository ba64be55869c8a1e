"""The public calls on a CUDA device that is a stand-in: arrays in RAM, files, arrays on the GPU."""

import gc
from dataclasses import replace

import numpy as np
import pytest

import hdgemm
from hdgemm import Options
from hdgemm.blas.products import multiply
from hdgemm.errors import DoesNotFitError, InputError
from hdgemm.options import STRATEGIES
from hdgemm.pipeline.devices.cuda import driven_by
from tests.pipeline.devices.cuda.cuda_bench import own_pages, page_locked, random
from tests.pipeline.devices.cuda.standin import Fault, StandIn
from tests.pipeline.devices.cuda.test_arrays import FakeCupy
from tests.reference import DTYPES, assert_close_in_eps

pytestmark = pytest.mark.usefixtures("one_blas_thread")

SMALL = Options(devices="cuda:0", host_memory="8MB", device_memory="9MB", tile=(96, 96, 128))


@pytest.fixture(params=["lazy", "ahead:2"])
def standin(request):
    machine = StandIn(order=request.param, devices=2)
    with driven_by(machine.api()):
        yield machine
    gc.collect()
    assert machine.leaks() in ({}, {"memory": machine.memory.held()})


class OnGpu:
    """An array in the stand-in's device memory, as another library would offer it."""

    def __init__(self, standin, array, device=0):
        standin.current.device = device
        pointer = standin.api().runtime.malloc(max(1, array.nbytes))
        standin.current.device = 0
        raw = (np.ctypeslib.ctypes.c_uint8 * array.nbytes).from_address(pointer)
        self.values = np.ndarray(array.shape, array.dtype, np.ctypeslib.as_array(raw))
        self.values[...] = array
        self.seen = self.values
        self.device = device

    @property
    def ndim(self):
        return self.seen.ndim

    @property
    def shape(self):
        return self.seen.shape

    @property
    def T(self):  # noqa: N802
        other = object.__new__(OnGpu)
        other.__dict__.update(self.__dict__, seen=self.seen.T)
        return other

    def __dlpack_device__(self):
        return 2, self.device

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.seen.shape,
            "typestr": self.seen.dtype.str,
            "data": (self.seen.ctypes.data, False),
            "strides": self.seen.strides,
            "version": 3,
        }


@pytest.mark.parametrize("dtype", DTYPES)
def test_dgemm_in_many_tiles(standin, dtype):
    a, b = random((200, 310), dtype, 1), random((310, 150), dtype, 2)
    c = random((200, 150), dtype, 3)
    result = hdgemm.dgemm(1.5, a.T, b, 0.5, c, trans_a=1, options=SMALL)
    assert_close_in_eps(result, a, b, alpha=1.5, beta=0.5, c=c)


def test_column_major_files(standin, tmp_path):
    a, b = random((200, 130), "float64", 1), random((130, 150), "float64", 2)
    np.save(tmp_path / "a.npy", np.asfortranarray(a))
    np.save(tmp_path / "b.npy", b)
    out = hdgemm.matmul(tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.npy", options=SMALL)
    assert_close_in_eps(np.array(out), a, b)


@pytest.mark.parametrize("trans", [(False, False, False), (True, False, True), (False, True, True)])
def test_arrays_that_lie_on_the_gpu_stay_there(standin, trans):
    a, b = random((60, 50), "float64", 1), random((50, 40), "float64", 2)
    c = random((60, 40), "float64", 3)
    gpu = [OnGpu(standin, x.T.copy() if t else x) for x, t in zip((a, b, c), trans, strict=True)]
    left, right, out = (x.T if t else x for x, t in zip(gpu, trans, strict=True))
    standin.calls.clear()
    report = multiply(left, right, alpha=2.0, beta=0.5, c=out, out=out, options=Options())
    assert report.devices == ("cuda:0",)
    assert_close_in_eps(out.seen.copy(), a, b, alpha=2.0, beta=0.5, c=c)
    assert not any("memcpy" in call.name for call in standin.calls)


def test_only_some_operands_lie_on_the_gpu(standin):
    a, b = random((200, 150), "float64", 1), random((150, 130), "float64", 2)
    result = hdgemm.dgemm(1.0, OnGpu(standin, a), b, options=SMALL)
    assert_close_in_eps(result, a, b)
    out = OnGpu(standin, np.full((200, 130), np.nan))
    assert hdgemm.matmul(a, b, out, options=SMALL) is out
    assert_close_in_eps(out.seen.copy(), a, b)


@pytest.mark.parametrize("devices", ["cuda:0", "cuda:1", ("cuda:0", "cuda:1"), ("cuda:0", "host")])
def test_work_that_still_fills_an_operand_is_waited_for_in_every_run(standin, monkeypatch, devices):
    """The producer names no stream: all of its GPU is waited for, on whichever devices it runs."""
    cupy = FakeCupy(drain=lambda _gpu_0: standin.api().runtime.deviceSynchronize())
    cupy.install(monkeypatch)
    a, b = random((170, 150), "float64", 1), random((150, 160), "float64", 2)
    x = OnGpu(standin, np.full_like(a, np.nan))
    pending = standin.api().stream()
    standin.enqueue(pending.ptr, lambda: np.copyto(x.values, a))
    options = replace(SMALL, devices=devices, device_memory="40MB")
    result = hdgemm.dgemm(1.0, x, b, options=options)
    assert_close_in_eps(result, a, b)
    del pending


def test_a_gpu_that_fails_in_the_middle_leaves_its_tiles_to_the_other():
    standin = StandIn(devices=2, faults=[Fault("dgemm", 6, 719, late=True)])
    a, b = random((400, 300), "float64", 1), random((300, 350), "float64", 2)
    out = np.empty((400, 350))
    with driven_by(standin.api()):
        options = replace(SMALL, devices=("cuda:0", "cuda:1"))
        report = multiply(a, b, out=out, options=options)
    assert_close_in_eps(out, a, b)
    assert sum(share.failed for share in report.split.shares.values()) == 1


def test_a_product_goes_to_the_gpu_its_operands_lie_on(standin):
    a = random((20, 20), "float64")
    x = OnGpu(standin, a, device=1)
    report = multiply(x, a, out=np.empty((20, 20)), options=Options())
    assert report.devices == ("cuda:1",)


def test_out_that_overlaps_an_operand_on_the_gpu_is_refused(standin):
    x = OnGpu(standin, np.eye(4))
    for out in (x, x.T):
        with pytest.raises(InputError, match=r"overlap|share"):
            hdgemm.matmul(x, np.eye(4), out)


def test_vectors_on_the_gpu_are_refused_with_their_shape(standin):
    with pytest.raises(InputError, match=r"2-D.*\(4,\)"):
        hdgemm.matmul(OnGpu(standin, np.ones(4)), np.eye(4))


@pytest.mark.parametrize("strategy", STRATEGIES[:4])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_page_locked_arrays_skip_staging(standin, strategy, beta):
    a, b, c = (own_pages(random((128, 128), "float64", seed)) for seed in range(3))
    old = c.copy()
    options = replace(SMALL, strategy=strategy)
    with page_locked(standin, a, b, c):
        report = multiply(a, b, c=c if beta else None, out=c, beta=beta, options=options)
    assert_close_in_eps(c, a, b, beta=beta, c=old if beta else None)
    placed = strategy == "data-placement"
    assert "load1" not in report.stages
    assert ("store2" in report.stages) == (beta != 0 or not placed)
    c_path = "direct" if placed and not beta else "staged"
    assert report.plan["paths"] == {"A": "direct", "B": "direct", "C": c_path}


def test_too_little_device_memory_is_an_error_with_the_numbers(standin):
    tight = Options(devices="cuda:0", host_memory="8MB", device_memory=1000)
    with pytest.raises(DoesNotFitError) as caught:
        hdgemm.matmul(np.ones((300, 300)), np.ones((300, 300)), options=tight)
    assert caught.value.missing > 0
    assert caught.value.available == 1000
    del caught
