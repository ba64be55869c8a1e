"""Devices by name, and the drivers that an automatic choice of a device asks."""

import pytest

from hdgemm.errors import DeviceUnavailableError
from hdgemm.pipeline.devices import cuda, opencl, registry
from hdgemm.pipeline.devices.opencl import platforms
from hdgemm.pipeline.devices.registry import DeviceInfo, first_accelerator

CPU = DeviceInfo("opencl:1", "a CPU")
GPU = DeviceInfo("opencl:0", "a GPU", accelerator=True)
BROKEN = DeviceInfo("cuda:0", "a GPU without its driver", usable=False, accelerator=True)


@pytest.fixture
def machine(monkeypatch):
    """A machine with a broken NVIDIA GPU, an OpenCL GPU and a CPU."""
    monkeypatch.setattr(cuda, "list_devices", lambda: [BROKEN])
    monkeypatch.setattr(opencl, "list_devices", lambda: [GPU, CPU])
    monkeypatch.setattr(opencl, "may_find_accelerators", lambda: True)
    return monkeypatch


def test_the_first_usable_accelerator_is_taken(machine):
    assert first_accelerator() == "opencl:0"


def test_a_cpu_is_no_accelerator(machine):
    machine.setattr(opencl, "list_devices", lambda: [CPU])
    assert first_accelerator() is None


def test_opencl_is_not_asked_where_only_pip_installed_runtimes(machine):
    machine.setattr(opencl, "may_find_accelerators", lambda: False)
    machine.setattr(opencl, "list_devices", lambda: pytest.fail("asked the loader"))
    assert first_accelerator() is None


def test_a_vendor_file_or_a_setting_makes_opencl_worth_asking(tmp_path, monkeypatch):
    monkeypatch.setattr(platforms.sys, "platform", "linux")
    monkeypatch.setattr(platforms, "_SYSTEM_VENDORS", tmp_path)
    monkeypatch.setattr(platforms.sys, "prefix", str(tmp_path / "prefix"))
    vendors = tmp_path / "prefix" / "etc" / "OpenCL" / "vendors"
    vendors.mkdir(parents=True)
    (vendors / "intel64.icd").write_text("libintelocl.so\n")  # a wheel's
    for name in platforms._LOADER_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert not platforms.may_find_accelerators()
    (tmp_path / "prefix" / "conda-meta").mkdir()
    assert platforms.may_find_accelerators()
    (tmp_path / "prefix" / "conda-meta").rmdir()
    (tmp_path / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    assert platforms.may_find_accelerators()
    (tmp_path / "nvidia.icd").unlink()
    monkeypatch.setenv("OCL_ICD_VENDORS", "/opt/vendors")
    assert platforms.may_find_accelerators()


def test_every_listed_device_has_a_name_and_a_reason_where_it_is_unusable():
    for info in registry.list_devices():
        assert info.name
        assert info.usable or info.note


@pytest.mark.parametrize(
    "name", ["", "host:1", "cuda:", "cuda:x", "opencl:x", "abacus", "cuda:999"]
)
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(DeviceUnavailableError):
        registry.open_device(name)
