"""The contract on every OpenCL device here, as a CPU that shares memory and as one that does not."""

import numpy as np
import pytest

from hdgemm.errors import DeviceError, DeviceUnavailableError, DoesNotFitError
from hdgemm.pipeline.devices.opencl import list_devices, open_device, parts
from hdgemm.pipeline.devices.protocol import Block, Tile
from tests.device_contract import DeviceContract, random
from tests.reference import assert_close_in_eps

pytest.importorskip("pyopencl")
LISTED = list_devices()


def opened(platform, **settings):
    for info in LISTED:
        if platform in info.description and info.name != "opencl":
            if not info.usable:
                pytest.skip(f"{info.name}: {info.note}")
            return open_device(info.name, **settings)
    return pytest.skip(f"no OpenCL platform named {platform!r} is installed")


class OpenCLContract(DeviceContract):
    platform = ""
    settings = {}

    @pytest.fixture
    def device(self):
        device = opened(self.platform, **self.settings)
        yield device
        device.close()


class TestIntel(OpenCLContract):
    platform = "Intel"


class TestIntelAsDiscrete(OpenCLContract):
    platform = "Intel"
    settings = {"zero_copy": False}


class TestPocl(OpenCLContract):
    platform = "Portable"


class TestPoclAsDiscrete(OpenCLContract):
    platform = "Portable"
    settings = {"zero_copy": False}
