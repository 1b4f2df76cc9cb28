"""The part of `torch.cuda` that serving code calls, for the simulated machine.

Installing replaces names in `torch.cuda` (and `torch.Generator`); each replacement looks at the calling thread: a thread with a
simulated machine gets it, every other thread gets the original. Uninstalling puts every original back.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from capfuzz.devices.errors import NotModelledError, Rule, invalid_device, not_permitted
from capfuzz.devices.sim import streams
from capfuzz.devices.sim.graph import CUDAGraph
from capfuzz.devices.sim.runtime import active, current
from capfuzz.devices.sim.surface import names_cuda
from capfuzz.devices.sim.threads import starting_on_the_machine

NAME = "capfuzz simulated GPU"
TOTAL_MEMORY = 150_109_880_320  # bytes: what an H200 reports
_REAL_GENERATOR = torch.Generator
_REAL_GRAPH = torch.cuda.graph
_REAL_STREAM = torch.cuda.Stream
_REAL_EVENT = torch.cuda.Event
_REAL_CUDA_GRAPH = torch.cuda.CUDAGraph


def _check_index(device: Any) -> None:
    if device is not None and not names_cuda(device):
        raise ValueError(f"Expected a cuda device, but got: {device}")


def get_device_properties(device: Any = None) -> Any:
    """Properties as an H200's, with a name that says what this is."""
    _check_index(device)
    return SimpleNamespace(
        name=NAME,
        major=9,
        minor=0,
        total_memory=TOTAL_MEMORY,
        multi_processor_count=132,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        L2_cache_size=60 << 20,
        gcnArchName="sm_90",
        is_integrated=False,
    )


def _set_device(device: Any) -> None:
    _check_index(device)


def _current_stream(device: Any = None) -> streams.Stream:
    return streams.Stream(state=current().stream)


def _default_stream(device: Any = None) -> streams.Stream:
    return streams.Stream(state=current().default_stream)


def _set_stream(stream: streams.Stream) -> None:
    current().stream = stream._state


def _synchronize(device: Any = None) -> None:
    current().refuse_in_capture()


def _empty_cache() -> None:
    runtime = current()
    for state in (runtime.default_stream, *runtime.machine.streams):
        state.empty_cache()


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return current().generator.get_state()


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    current().generator.set_state(new_state)


def _seed_new() -> int:
    runtime = current()
    if runtime.capture is not None:
        raise RuntimeError("Cannot call CUDAGeneratorImpl::seed during CUDA graph capture.")
    return runtime.generator.seed()


class _DeviceContext:
    """`torch.cuda.device(0)`: there is one device."""

    def __init__(self, device: Any) -> None:
        if device is not None and device != -1:
            _check_index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


class graph(_REAL_GRAPH):  # noqa: N801  (the name that users write)
    """PyTorch's own `torch.cuda.graph`; it only names a nested capture as such, before its synchronise fails."""

    default_capture_stream = None

    def __enter__(self) -> None:
        runtime = current()
        if runtime.capture is not None:
            raise runtime.capture.invalidate(not_permitted(Rule.NESTED_CAPTURE))
        super().__enter__()


class _IsGenerator(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _REAL_GENERATOR)


class Generator(_REAL_GENERATOR, metaclass=_IsGenerator):
    """`torch.Generator` for every device that the simulated machine has."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        runtime = active()
        if runtime is None or not names_cuda(device):
            return _REAL_GENERATOR(device)
        if runtime.capture is not None:
            raise RuntimeError(
                "Cannot construct a new CUDAGeneratorImpl during CUDA graph capture. If you need this call to be captured, "
                "please file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
            )
        return runtime.machine.new_generator()


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _not_modelled(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotModelledError(f"torch.cuda.{name} is not modelled by the simulated device")

    return refuse


_STATS: dict[str, int] = {}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "is_available": _constant(True),
    "is_initialized": _constant(True),
    "init": _constant(None),
    "_lazy_init": _constant(None),
    "device_count": _constant(1),
    "current_device": _constant(0),
    "set_device": _set_device,
    "get_device_name": _constant(NAME),
    "get_device_capability": _constant((9, 0)),
    "get_device_properties": get_device_properties,
    "can_device_access_peer": _constant(False),
    "is_bf16_supported": _constant(True),
    "current_stream": _current_stream,
    "default_stream": _default_stream,
    "set_stream": _set_stream,
    "stream": streams.StreamContext,
    "synchronize": _synchronize,
    "is_current_stream_capturing": lambda: current().capturing is not None,
    "graph_pool_handle": lambda: (0, id(object())),
    "empty_cache": _empty_cache,
    "ipc_collect": _constant(None),
    "mem_get_info": _constant((TOTAL_MEMORY, TOTAL_MEMORY)),
    "memory_allocated": _constant(0),
    "memory_reserved": _constant(0),
    "max_memory_allocated": _constant(0),
    "max_memory_reserved": _constant(0),
    "reset_peak_memory_stats": _constant(None),
    "memory_stats": lambda device=None: dict(_STATS),
    "manual_seed": lambda seed: current().seed(int(seed)),
    "manual_seed_all": lambda seed: current().seed(int(seed)),
    "seed": _seed_new,
    "seed_all": _seed_new,
    "initial_seed": lambda: current().generator.initial_seed(),
    "get_rng_state": _get_rng_state,
    "get_rng_state_all": lambda: [_get_rng_state()],
    "set_rng_state": _set_rng_state,
    "set_rng_state_all": lambda new_states: _set_rng_state(new_states[0]),
    "_sleep": _not_modelled("_sleep"),
}
_NVTX = {
    "range_push": _constant(0),
    "range_pop": _constant(0),
    "mark": _constant(None),
    "range_start": _constant(0),
    "range_end": _constant(None),
}
_CLASSES: dict[str, tuple[type, type]] = {
    "Stream": (streams.Stream, _REAL_STREAM),
    "Event": (streams.Event, _REAL_EVENT),
    "CUDAGraph": (CUDAGraph, _REAL_CUDA_GRAPH),
    "graph": (graph, _REAL_GRAPH),
    "device": (_DeviceContext, torch.cuda.device),
    "StreamContext": (streams.StreamContext, torch.cuda.StreamContext),
}


def _for_this_thread(simulated: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """The simulated function in a thread with a machine, the original in every other."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (simulated if active() is not None else original)(*args, **kwargs)

    if callable(original):
        functools.update_wrapper(call, original)
    return call


def _class_for_this_thread(simulated: type, original: type) -> type:
    """A class that makes simulated objects in a thread with a machine; `isinstance` accepts both kinds."""

    class Chooser(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return (simulated if active() is not None else original)(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (simulated, original))

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, (simulated, original))

        def __getattr__(cls, name: str) -> Any:
            return getattr(simulated if active() is not None else original, name)

    return Chooser(simulated.__name__, (), {"__doc__": simulated.__doc__, "__module__": original.__module__})


class _DefaultGenerators(Sequence[torch.Generator]):
    """`torch.cuda.default_generators`."""

    def __init__(self, original: Sequence[torch.Generator]) -> None:
        self._original = original

    def _generators(self) -> Sequence[torch.Generator]:
        runtime = active()
        return self._original if runtime is None else (runtime.generator,)

    def __getitem__(self, index: Any) -> Any:
        return self._generators()[index]

    def __len__(self) -> int:
        return len(self._generators())


class CudaApi:
    """The replaced names; installed once however many contexts are open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth > 1:
                return
            for name, simulated in _FUNCTIONS.items():
                original = getattr(torch.cuda, name, None)
                self._replace(torch.cuda, name, _for_this_thread(simulated, original))
            for name, simulated in _NVTX.items():
                self._replace(torch.cuda.nvtx, name, _for_this_thread(simulated, getattr(torch.cuda.nvtx, name)))
            for name, (ours, theirs) in _CLASSES.items():
                self._replace(torch.cuda, name, _class_for_this_thread(ours, theirs))
            self._replace(torch.cuda.graphs, "CUDAGraph", torch.cuda.CUDAGraph)
            self._replace(torch.cuda.graphs, "graph_pool_handle", torch.cuda.graph_pool_handle)
            self._replace(torch.cuda.graphs, "is_current_stream_capturing", torch.cuda.is_current_stream_capturing)
            self._replace(torch.cuda, "default_generators", _DefaultGenerators(torch.cuda.default_generators))
            self._replace(torch, "Generator", Generator)
            self._replace(threading.Thread, "start", starting_on_the_machine(threading.Thread.start))
            original = getattr(torch._C, "_host_emptyCache", None)
            self._replace(torch._C, "_host_emptyCache", _for_this_thread(_constant(None), original))

    def uninstall(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            while self._originals:
                owner, name, original = self._originals.pop()
                if original is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name, _MISSING)))
        setattr(owner, name, value)


_MISSING = object()
API = CudaApi()
__all__ = ["API", "CudaApi", "invalid_device"]
