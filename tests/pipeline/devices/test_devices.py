"""The contract on the devices that every machine has, and the checks of the recording device."""

import numpy as np
import pytest

from hdgemm.errors import DeviceError, DoesNotFitError
from hdgemm.pipeline.devices.host import HostDevice
from hdgemm.pipeline.devices.protocol import Block, Tile
from hdgemm.pipeline.devices.recording import Fault, RecordingDevice
from tests.pipeline.devices.device_contract import DeviceContract


class TestHost(DeviceContract):
    @pytest.fixture
    def device(self):
        device = HostDevice()
        yield device
        device.close()


class TestRecording(DeviceContract):
    @pytest.fixture
    def device(self):
        device = RecordingDevice()
        yield device
        device.close()
        assert device.buffers == 0


@pytest.fixture
def recording():
    device = RecordingDevice(1000)
    yield device
    device.close()


def test_recording_device_refuses_more_than_it_has(recording):
    held = recording.allocate(600)
    with pytest.raises(DoesNotFitError, match="600 of 1,000 held") as caught:
        recording.allocate(500)
    assert caught.value.available == 400
    recording.free(held)


def test_recording_device_finds_an_unordered_write():
    device = RecordingDevice(pace=lambda kind, amount: 0.05 if kind == "gemm" else 0.0)
    tiles = {x: Tile(x, device.allocate(32), 2, 2, 2, np.dtype("float64")) for x in ("A", "B", "C")}
    blocks = {x: Block(tile, 0, 0, 2, 2) for x, tile in tiles.items()}
    loads = [device.upload(np.ones((2, 2)), blocks[x], []) for x in ("A", "B")]
    product = device.gemm(1.0, blocks["A"], blocks["B"], 0.0, blocks["C"], loads)
    with pytest.raises(AssertionError, match="race"):
        device.upload(np.zeros((2, 2)), blocks["A"], [])
    with pytest.raises(AssertionError, match="race"):
        device.download(blocks["C"], np.zeros((2, 2)), [])
    device.upload(np.zeros((2, 2)), blocks["A"], [product]).wait()
    device.close()


def test_recording_device_finds_staging_overwritten_too_early():
    device = RecordingDevice(pace=lambda kind, amount: 0.1)
    tile = Tile("A", device.allocate(8 * 10**6), 1000, 1000, 1000, np.dtype("float64"))
    block = Block(tile, 0, 0, 1000, 1000)
    source = np.ones((1000, 1000))
    first = device.upload(source, block, [])
    second = device.upload(source, block, [first])
    source[-1, -1] = 2.0
    with pytest.raises(DeviceError):
        second.wait()
    device.close()


@pytest.mark.parametrize("late", [False, True])
def test_recording_device_fails_when_told(late):
    device = RecordingDevice(fault=Fault(1, late=late))
    tile = Tile("A", device.allocate(8), 1, 1, 1, np.dtype("float64"))
    with pytest.raises(DeviceError, match="upload"):
        device.upload(np.ones((1, 1)), Block(tile, 0, 0, 1, 1), []).wait()
    device.close()
