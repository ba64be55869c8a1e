"""A device made of NumPy and threads that checks how it is used."""

from hdgemm.pipeline.devices.recording.corruption import Corruption, flip_bit
from hdgemm.pipeline.devices.recording.device import Call, Fault, RecordingDevice

__all__ = ["Call", "Corruption", "Fault", "RecordingDevice", "flip_bit"]
