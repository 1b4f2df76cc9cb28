"""The rules of the simulated device, one family of ops a module. Importing this package registers them."""

from capfuzz.devices.sim.rules import copies, indexing, scalars, synchronising

__all__ = ["copies", "indexing", "scalars", "synchronising"]
