"""capfuzz: proves that tensor code gives the same answer under CUDA graph capture and replay as it gives eagerly."""

from capfuzz.version import VERSION as __version__


def sim():  # type: ignore[no-untyped-def]
    """`with capfuzz.sim():` runs unmodified `torch.cuda` code, graphs included, on the simulated device."""
    from capfuzz.devices.sim import sim as simulated

    return simulated()


__all__ = ["__version__", "sim"]
