"""Random number generators of the device, in eager code and in graphs.

A generator object points to a state, which several objects may share (`graphsafe_set_state`). A capture keeps the draws out of
the state: it goes on afterwards as if nothing had been drawn, and each replay draws from where the state then is. What the host
does with the state during capture is relative to the graph's beginning: a state that is read there is a *mark* among the draws,
and setting it again lets the replay go back to that mark (`CUDAGeneratorImpl.cpp`; measured on an H200, torch 2.11).
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from capfuzz.devices.errors import GeneratorError, NotModelledError
from capfuzz.devices.sim.tensor import CUDA

if TYPE_CHECKING:
    from capfuzz.devices.sim.capture import Capture
    from capfuzz.devices.sim.runtime import Machine

_REAL_GENERATOR = torch.Generator


def refused_in_capture(call: str) -> RuntimeError:
    return RuntimeError(
        f"{call} during CUDA graph capture. If you need this call to be captured, please file an issue. "
        "Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
    )


class SimGenerator(_REAL_GENERATOR):
    """`torch.Generator(device="cuda")`: a CPU generator that says it is on the device."""

    device = property(lambda self: CUDA)
    _cdata: int
    machine: Machine
    shared: SimGenerator | None = None
    """The generator whose state this one uses, None for its own."""
    captured: Capture | None = None
    """The capture that holds this state. A capture that failed never lets it go, as on hardware."""
    offset = 0

    @property
    def root(self) -> SimGenerator:
        return self if self.shared is None else self.shared.root

    def _capture(self) -> Capture | None:
        from capfuzz.devices.sim.runtime import current

        return current().capturing

    def manual_seed(self, seed: int) -> SimGenerator:
        root, capture = self.root, self._capture()
        if capture is None:
            root.seed_root(seed)
        elif seed != root.initial_seed():  # the same one is let through, and changes nothing
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
                "the original seed."
            )
        return self

    def seed_root(self, seed: int) -> None:
        """`manual_seed` outside any capture."""
        root = self.root
        root.offset = 0
        _REAL_GENERATOR.manual_seed(root, seed)

    def seed(self) -> int:
        if self._capture() is not None:
            raise refused_in_capture("Cannot call CUDAGeneratorImpl::seed")
        return _REAL_GENERATOR.seed(self.root)

    def initial_seed(self) -> int:
        return _REAL_GENERATOR.initial_seed(self.root)

    def get_state(self) -> torch.Tensor:
        state = _REAL_GENERATOR.get_state(self.root)
        capture = self._capture()
        if capture is not None:
            draws_of(capture, self.root).mark(state)
        return state

    def set_state(self, new_state: torch.Tensor) -> SimGenerator:
        capture = self._capture()
        if capture is not None:
            draws_of(capture, self.root).go_back(new_state)
        _REAL_GENERATOR.set_state(self.root, new_state)
        return self

    def get_offset(self) -> int:
        """How many draws there were, times four: not the hardware's number, but it moves as that does."""
        if self._capture() is not None:
            raise refused_in_capture("Cannot call CUDAGeneratorImpl::get_offset")
        return self.root.offset

    def set_offset(self, offset: int) -> SimGenerator:
        if self._capture() is not None:
            raise refused_in_capture("Cannot call CUDAGeneratorImpl::set_offset")
        if offset != self.root.offset:
            raise NotModelledError("torch.Generator.set_offset is not modelled by the simulated device: use set_state")
        return self

    def clone_state(self) -> SimGenerator:
        twin = self.machine.new_generator()
        _REAL_GENERATOR.set_state(twin, _REAL_GENERATOR.get_state(self.root))
        return twin

    def graphsafe_get_state(self) -> SimGenerator:
        twin = self.machine.new_generator()
        twin.shared = self.root
        return twin

    def graphsafe_set_state(self, state: torch.Generator) -> SimGenerator:
        assert isinstance(state, SimGenerator)
        if state.root is not self:
            self.shared = state.root
        return self


class Draws:
    """What one capture does with one generator's state."""

    def __init__(self, capture: Capture, root: SimGenerator) -> None:
        self._capture = capture
        self._root = root
        self._initial = _REAL_GENERATOR.get_state(root)
        self._marks: dict[bytes, torch.Tensor] = {}
        root.captured = capture
        self.mark(self._initial)

    def mark(self, state: torch.Tensor) -> None:
        """From here on a replay can come back to this point."""
        key = bytes(state.numpy())
        if key not in self._marks:
            self._marks[key] = state
            self._capture.add_host_node("rng_mark", partial(self._remember, key))

    def go_back(self, state: torch.Tensor) -> None:
        key = bytes(state.numpy())
        if key not in self._marks:
            raise NotModelledError(
                "setting a generator's state during capture is modelled only for a state that was read in the same capture"
            )
        self._capture.add_host_node("rng_go_back", partial(self._recall, key))

    def _remember(self, key: bytes) -> None:
        self._marks[key] = _REAL_GENERATOR.get_state(self._root)

    def _recall(self, key: bytes) -> None:
        _REAL_GENERATOR.set_state(self._root, self._marks[key])

    def finish(self, succeeded: bool) -> None:
        """The capture has drawn nothing."""
        _REAL_GENERATOR.set_state(self._root, self._initial)
        if succeeded:
            self._root.captured = None


def draws_of(capture: Capture, root: SimGenerator) -> Draws:
    draws = capture.draws.get(root._cdata)
    if draws is None:
        draws = capture.draws[root._cdata] = Draws(capture, root)
    return draws


def about_to_draw(generator: SimGenerator, capture: Capture | None) -> SimGenerator:
    """The state that a draw comes from. Raises when the draw and the state's capture do not go together."""
    root = generator.root
    if capture is None:
        if root.captured is not None:
            raise GeneratorError("Offset increment outside graph capture encountered unexpectedly.")
    elif root is not root.machine.generator.root and root not in capture.registered:
        raise GeneratorError("Attempt to increase offset for a CUDA generator not in capture mode.")
    else:
        draws_of(capture, root)
    root.offset += 4
    return root


class _IsGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _REAL_GENERATOR)


class Generator(_REAL_GENERATOR, metaclass=_IsGenerator):
    """`torch.Generator` for every device that the simulated machine has."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        from capfuzz.devices.sim.runtime import active
        from capfuzz.devices.sim.surface import names_cuda

        runtime = active()
        if runtime is None or not names_cuda(device):
            return _REAL_GENERATOR(device)
        if runtime.capture is not None:
            raise refused_in_capture("Cannot construct a new CUDAGeneratorImpl")
        return runtime.machine.new_generator()


def new_registry() -> weakref.WeakValueDictionary[int, SimGenerator]:
    """PyTorch hands ops a new Python object for a generator, so it is known by its address."""
    return weakref.WeakValueDictionary()
