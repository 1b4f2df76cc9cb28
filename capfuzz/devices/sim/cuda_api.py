"""The part of `torch.cuda` (and of what stands beside it) that serving code calls, for the simulated machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.dlpack

from capfuzz.devices.errors import Rule, not_permitted
from capfuzz.devices.sim import accelerator, cuda_memory, host_arguments, streams, telling  # noqa: F401  (some register handlers)
from capfuzz.devices.sim.cuda_memory import TOTAL_MEMORY
from capfuzz.devices.sim.generators import Generator
from capfuzz.devices.sim.graph import CUDAGraph
from capfuzz.devices.sim.making import legacy_tensor
from capfuzz.devices.sim.replaced import Replacements, function_for_this_thread
from capfuzz.devices.sim.runtime import active, current
from capfuzz.devices.sim.surface import names_cuda
from capfuzz.devices.sim.tensor import CUDA, TYPE_NAMES, is_sim
from capfuzz.devices.sim.threads import starting_on_the_machine
from capfuzz.devices.sim.triton_kernels import install as install_triton

NAME = "capfuzz simulated GPU"
_REAL_GRAPH = torch.cuda.graph
_REAL_FROM_DLPACK = torch.utils.dlpack.from_dlpack
_REAL_GROUP = torch._C._group_tensors_by_device_and_dtype


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


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return current().generator.get_state()


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    current().generator.set_state(new_state)


_SYNC_MODES = ("default", "warn", "error")


def _set_sync_debug_mode(debug_mode: int | str) -> None:
    name = _SYNC_MODES[debug_mode] if isinstance(debug_mode, int) else debug_mode
    if name not in _SYNC_MODES:
        raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
    current().machine.sync_debug_mode = name


def _sleep(cycles: int) -> None:
    """A kernel that does nothing for a while: here for no time at all."""
    capturing = current().capturing
    if capturing is not None:
        capturing.check_valid()
        capturing.add_work(current(), "_sleep")


def _from_dlpack(ext_tensor: Any, **kwargs: Any) -> torch.Tensor:
    """A device tensor goes through DLPack as what it is: the same memory."""
    if is_sim(ext_tensor):
        shared: torch.Tensor = ext_tensor.detach()
        return shared
    made: torch.Tensor = _REAL_FROM_DLPACK(ext_tensor, **kwargs)
    return made


def _group_by_device_and_dtype(tensorlistlist: Any, with_indices: bool = False) -> Any:
    """The original asks C++ for the device, which sees the CPU."""
    grouped = _REAL_GROUP(tensorlistlist, with_indices)
    return {
        (CUDA if any(is_sim(t) for t in lists[0][0] if t is not None) else device, dtype): lists
        for (device, dtype), lists in grouped.items()
    }


class _DeviceContext:
    """`torch.cuda.device(0)`: there is one device."""

    def __init__(self, device: Any) -> None:
        if device is not None and device != -1:
            _check_index(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


class _DeviceOf(_DeviceContext):
    """`torch.cuda.device_of(tensor)`."""

    def __init__(self, obj: Any) -> None:
        super().__init__(None)


class graph(_REAL_GRAPH):  # noqa: N801  (the name that users write)
    """PyTorch's own `torch.cuda.graph`; it only names a nested capture as such, before its synchronise fails."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None, **kwargs: Any) -> None:
        if stream is None:  # PyTorch keeps one for the process: here it is the machine's
            machine = current().machine
            stream = machine.capture_stream = machine.capture_stream or streams.Stream()
        super().__init__(cuda_graph, pool=pool, stream=stream, **kwargs)

    def __enter__(self) -> None:
        runtime = current()
        if runtime.capture is not None:
            raise runtime.capture.invalidate(not_permitted(Rule.NESTED_CAPTURE))
        super().__enter__()


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


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
    "get_stream_from_external": streams.ExternalStream,
    "set_sync_debug_mode": _set_sync_debug_mode,
    "get_sync_debug_mode": lambda: _SYNC_MODES.index(current().machine.sync_debug_mode),
    "manual_seed": lambda seed: current().generator.manual_seed(int(seed)),
    "manual_seed_all": lambda seed: current().generator.manual_seed(int(seed)),
    "seed": lambda: current().generator.seed(),
    "seed_all": lambda: current().generator.seed(),
    "initial_seed": lambda: current().generator.initial_seed(),
    "get_rng_state": _get_rng_state,
    "get_rng_state_all": lambda: [_get_rng_state()],
    "set_rng_state": _set_rng_state,
    "set_rng_state_all": lambda new_states: _set_rng_state(new_states[0]),
    "_sleep": _sleep,
    **cuda_memory.FUNCTIONS,
}
_NVTX = {
    "range_push": _constant(0),
    "range_pop": _constant(0),
    "mark": _constant(None),
    "range_start": _constant(0),
    "range_end": _constant(None),
}
_CLASSES: dict[str, type] = {
    "Stream": streams.Stream,
    "Event": streams.Event,
    "ExternalStream": streams.ExternalStream,
    "CUDAGraph": CUDAGraph,
    "graph": graph,
    "device": _DeviceContext,
    "device_of": _DeviceOf,
    "StreamContext": streams.StreamContext,
    "MemPool": cuda_memory.MemPool,
    **{f"{kind}Tensor": legacy_tensor(dtype) for dtype, kind in TYPE_NAMES.items()},
}


def _as_on_the_cpu(name: str) -> Callable[..., Any]:
    """Autocast is a matter of dispatch keys, and the tensors have the CPU's: what is set for cuda holds for them."""
    original = getattr(torch, name)

    def call(*args: Any) -> Any:
        if args and args[0] == "cuda":
            if name.startswith("set_"):
                original(*args)
            return original("cpu", *args[1:])
        return original(*args)

    return call


_AUTOCAST = {
    name: _as_on_the_cpu(name)
    for name in ("set_autocast_enabled", "set_autocast_dtype", "is_autocast_enabled", "get_autocast_dtype")
}


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


def _install(names: Replacements) -> None:
    names.functions(torch.cuda, _FUNCTIONS)
    names.functions(torch.cuda.nvtx, _NVTX)
    names.classes(torch.cuda, _CLASSES)
    for name in ("CUDAGraph", "graph_pool_handle", "is_current_stream_capturing"):
        names.put(torch.cuda.graphs, name, getattr(torch.cuda, name))
    names.put(torch.cuda, "default_generators", _DefaultGenerators(torch.cuda.default_generators))
    names.put(torch, "Generator", Generator)
    empty_host_cache = getattr(torch._C, "_host_emptyCache", None)  # a CPU build has none, and `torch.cuda.graph` calls it
    names.put(torch._C, "_host_emptyCache", function_for_this_thread(_constant(None), empty_host_cache))
    names.functions(torch._C, {"_group_tensors_by_device_and_dtype": _group_by_device_and_dtype})
    names.functions(torch.backends.cuda, {"is_built": _constant(True)})
    names.functions(torch, _AUTOCAST)
    names.functions(torch, {"from_dlpack": _from_dlpack})
    names.functions(torch.utils.dlpack, {"from_dlpack": _from_dlpack})
    names.functions(torch.accelerator, accelerator.FUNCTIONS)
    names.put(threading.Thread, "start", starting_on_the_machine(threading.Thread.start))
    install_triton(names)


API = Replacements(_install)
