"""Finding GPUs, and saying why one cannot be used."""

import builtins
import ctypes
import importlib.util
import sys
from types import SimpleNamespace

import pytest

from hdgemm.errors import DeviceUnavailableError, DoesNotFitError
from hdgemm.machine.rates import H200, assumed
from hdgemm.matrices.cuda_driver import DriverLibrary
from hdgemm.pipeline.devices.cuda import (
    _find as find,
    driven_by,
    list_devices,
    open_device,
)
from hdgemm.pipeline.devices.cuda._driver import Driver
from tests.pipeline.devices.cuda.standin import Fault, Properties, StandIn
from tests.pipeline.devices.cuda.standin.streams import CUDARuntimeError


def test_listing_makes_no_context_on_any_gpu():
    standin = StandIn(devices=2)
    with driven_by(standin.api()):
        list_devices()
    assert standin.contexts == set()
    assert standin.count("getDeviceProperties") == 2


def test_every_gpu_is_listed_and_can_be_opened():
    with driven_by(StandIn(devices=2, device_bytes=1 << 30).api()):
        found = list_devices()
        assert [info.name for info in found] == ["cuda:0", "cuda:1"]
        assert all(info.usable and info.accelerator for info in found)
        assert found[0].memory_bytes == 1 << 30
        assert "sm_90" in found[0].description
        assert open_device("cuda").spec.name == "cuda:0"
        assert open_device("cuda:1").spec.name == "cuda:1"
        with pytest.raises(DeviceUnavailableError, match=r"no cuda:2: 2 GPU"):
            open_device("cuda:2")
        with pytest.raises(DeviceUnavailableError, match="'cuda:x'"):
            open_device("cuda:x")


def failing(status, driver_version):
    api = StandIn(faults=[Fault("getDeviceCount", 0, status)]).api()
    api.runtime.driverGetVersion = lambda: driver_version
    return api


@pytest.mark.parametrize(
    ("status", "driver_version", "words"),
    [
        (35, 0, "no NVIDIA driver is installed"),
        (35, 12040, r"speaks CUDA 12\.4, CuPy was built for 13\.0"),
        (100, 13000, "sees no GPU"),
        (3, 13000, "refused: asked to fail"),
    ],
)
def test_why_there_is_no_gpu(status, driver_version, words):
    with driven_by(failing(status, driver_version)):
        (info,) = list_devices()
        assert not info.usable
        assert info.name == "cuda"
    with (
        driven_by(failing(status, driver_version)),
        pytest.raises(DeviceUnavailableError, match=words),
    ):
        open_device("cuda:0")


def test_no_gpu_is_visible():
    with driven_by(StandIn(devices=0).api()):
        assert "CUDA_VISIBLE_DEVICES" in list_devices()[0].note


def test_one_bad_gpu_does_not_hide_the_others():
    with driven_by(StandIn(devices=2, faults=[Fault("getDeviceProperties", 0, 46)]).api()):
        bad, good = list_devices()
    assert not bad.usable
    assert "status 46" in bad.note
    assert good.usable


@pytest.mark.parametrize(
    ("call", "first"),
    [("runtimeGetVersion", 0), ("runtimeGetVersion", 35), ("driverGetVersion", 35)],
)
def test_a_driver_that_does_not_tell_its_version(call, first):
    """`first` is the status of the call that counts the GPUs."""
    faults = [Fault(call, 0, 999, persistent=True)]
    if first:
        faults.append(Fault("getDeviceCount", 0, first, persistent=True))
    standin = StandIn(faults=faults, properties=Properties(version=12000))
    with driven_by(standin.api()):
        (info,) = list_devices()
        assert not info.usable
        assert f"{call} failed: asked to fail" in info.note
        with pytest.raises(DeviceUnavailableError, match=f"cuda:0 cannot be opened.*{call} failed"):
            open_device("cuda:0")


def test_volta_needs_the_wheel_for_cuda_12():
    volta = (7, 0)
    with driven_by(StandIn(properties=Properties(volta)).api()):
        (info,) = list_devices()
        assert not info.usable
        assert "compute capability 7.0: install hdgemm[cuda12]" in info.note
        with pytest.raises(DeviceUnavailableError, match=r"cuda:0 cannot be used.*cuda12"):
            open_device("cuda:0")
    with driven_by(StandIn(properties=Properties(volta, version=12090)).api()):
        assert list_devices()[0].usable
        open_device("cuda:0").close()


def test_a_gpu_that_cannot_page_lock_host_memory_is_refused():
    with driven_by(StandIn(properties=Properties(registers_host_memory=False)).api()):
        (info,) = list_devices()
        assert not info.usable
        assert "cannot page-lock the host memory" in info.note
        with pytest.raises(DeviceUnavailableError, match="cuda:0 cannot be used: it cannot page-l"):
            open_device("cuda:0")


def test_a_gpu_with_few_double_precision_units_is_not_planned_for_as_an_h200():
    rates = []
    for ratio in (2, 64):
        with driven_by(StandIn(properties=Properties(fp64_ratio=ratio)).api()):
            spec = open_device("cuda:0").spec
        rates.append(assumed(spec).flop_rate("float64"))
        assert assumed(spec).flop_rate("float32") == H200.flop_rate("float32")
    assert rates[0] == H200.flop_rate("float64")
    assert rates[1] == H200.flop_rate("float32") / 64


def test_a_gpu_that_cannot_be_opened_says_why():
    with (
        driven_by(StandIn(faults=[Fault("Stream", 0, 46)]).api()),
        pytest.raises(DeviceUnavailableError, match=r"cannot be opened.*status 46") as caught,
    ):
        open_device("cuda:0")
    assert isinstance(caught.value.__cause__.__cause__, CUDARuntimeError)


class Libcuda:
    """The driver library's functions, as ctypes calls them; `status` is what retaining returns."""

    def __init__(self, status=0):
        self.status, self.current, self.retained = status, [], []

    def __call__(self, name):
        assert name == "libcuda.so.1"
        return self

    def cuInit(self, flags):  # noqa: N802
        return flags

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):  # noqa: N802
        self.retained.append(device.value)
        context._obj.value = 0xC0 + device.value
        return self.status

    def cuCtxPushCurrent_v2(self, context):  # noqa: N802
        self.current.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context):  # noqa: N802
        context._obj.value = self.current.pop()
        return 719  # an error of earlier work, which pops all the same

    def cuPointerGetAttribute(self, value, attribute, pointer):  # noqa: N802
        value._obj.value = {9: 1, 11: 4096, 12: 512}[attribute]
        return 0 if pointer.value == 4200 else 1


def test_the_driver_library_pushes_primary_contexts(monkeypatch):
    library = Libcuda()
    monkeypatch.setattr(ctypes, "CDLL", library)
    contexts = DriverLibrary()
    contexts.push(1)
    contexts.push(0)
    contexts.push(1)
    assert library.current == [0xC1, 0xC0, 0xC1]
    assert library.retained == [1, 0]  # once for each GPU
    contexts.pop()
    assert library.current == [0xC1, 0xC0]
    assert contexts.address_range(4200) == (4096, 512)
    assert contexts.address_range(1) is None
    assert contexts.device_of(4200) == 1


def test_a_context_that_does_not_fit_is_out_of_memory(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", Libcuda(status=2))
    driver = Driver(StandIn().api()._replace(contexts=DriverLibrary()))
    with pytest.raises(DoesNotFitError, match="no room for device memory for cuCtxPushCurrent"):
        driver.memory()


def without_cupy(name, *_):
    return None if name == "cupy" else SimpleNamespace()


def test_cupy_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", without_cupy)
    with pytest.raises(DeviceUnavailableError, match=r"hdgemm\[cuda13\]"):
        find._load_cupy()


def test_cupy_cannot_be_imported(monkeypatch):
    true_import = builtins.__import__

    def broken(name, *args):
        if name == "cupy":
            raise OSError("libfoo.so: undefined symbol")
        return true_import(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: SimpleNamespace())
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(DeviceUnavailableError, match=r"libfoo\.so"):
        find._load_cupy()


def test_cupy_and_the_driver_are_missing(monkeypatch):
    def absent():
        raise OSError("libcuda.so.1")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(find.DriverLibrary, "loaded", absent)
    monkeypatch.setattr(find, "_LOADED", [])
    missing = r"CuPy is not installed, and no NVIDIA driver .*`hdgemm devices` lists"
    with pytest.raises(DeviceUnavailableError, match=missing):
        find.open_device("cuda:0")
    monkeypatch.setattr(find.DriverLibrary, "loaded", object)
    with pytest.raises(DeviceUnavailableError, match="CuPy is not installed; pip install"):
        find.open_device("cuda:0")


def test_cublas_is_missing(monkeypatch):
    class Cuda:
        @property
        def cublas(self):
            raise ImportError("DynamicLibNotFound: cublas")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(__version__="14.2.0", cuda=Cuda()))
    with pytest.raises(DeviceUnavailableError, match="cuBLAS was not found"):
        find._load_cupy()
