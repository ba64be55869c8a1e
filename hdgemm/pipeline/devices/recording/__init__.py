"""A device made of NumPy and threads that checks how it is used."""

from hdgemm.pipeline.devices.recording._device import RecordingDevice
from hdgemm.pipeline.devices.recording._operation import Call, Corruption, Fault, flip_bit

__all__ = ["Call", "Corruption", "Fault", "RecordingDevice", "flip_bit"]
