"""Devices: where cases run. Usable alone; knows nothing of targets."""

from capfuzz.devices.base import Buffer, Device, DeviceMissingError, Graph, device_names, open_device
from capfuzz.devices.errors import Rule

__all__ = ["Buffer", "Device", "DeviceMissingError", "Graph", "Rule", "device_names", "open_device"]
