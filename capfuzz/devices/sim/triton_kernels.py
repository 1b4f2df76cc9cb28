"""Triton kernels on the simulated device: `kernel[grid](...)` is one launch, and during capture one node.

A launch is bound and typed by Triton's own code, so that what it refuses is refused in its words, and run by Triton's own
interpreter (`triton_interpreter`). A graph keeps addresses: a replay reads and writes the same memory, while the grid and every
number are those of the capture. Nobody knows what a kernel writes, so every tensor that it is given counts as written.

An autotuned kernel takes the first of its configurations that is legal, without measuring (`triton_gpu`).

Kernels are met where they are launched, so it does not matter when they were decorated. Where Triton is installed it is
imported when the first context opens, which takes a tenth of a second: `import triton` inside then finds it prepared. Where it
is not, nothing happens.
"""

from __future__ import annotations

import copy
import importlib.util
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch

from capfuzz.devices import trace
from capfuzz.devices.errors import CudaError, NotModelledError
from capfuzz.devices.sim.capture import Capture, Node
from capfuzz.devices.sim.replaced import Replacements
from capfuzz.devices.sim.runtime import Runtime, active, current
from capfuzz.devices.sim.tensor import is_sim, plain
from capfuzz.devices.sim.triton_gpu import DRIVER, autotuned
from capfuzz.devices.sim.triton_memory import IllegalAccessError

_LARGEST_GRID = (2**31 - 1, 65_535, 65_535)


@contextmanager
def _no_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


# -- what is launched --------------------------------------------------------------------------------------------------


class _Bound:
    """A kernel's arguments as Triton binds and types them; a wrong one is refused here, as Triton does."""

    def __init__(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        knobs = import_module("triton.knobs")
        self.debug = bool(kwargs.get("debug", kernel.debug) or knobs.runtime.debug)
        backend, binder = _binder(kernel)
        self.values, types, options = binder(*args, **kwargs)
        self.types = dict(zip(self.values, types, strict=False))
        known = backend.parse_options({**options, "debug": self.debug}).__dict__
        for name in options:
            if name not in known:
                raise KeyError(f"Keyword argument {name} was specified but unrecognised")


def _binder(kernel: Any) -> tuple[Any, Callable[..., Any]]:
    """Triton's backend for the simulated GPU, and what binds the kernel's arguments."""
    made: tuple[Any, Callable[..., Any]] | None = kernel.__dict__.get("_capfuzz_binder")
    if made is None:
        backend = import_module("triton.compiler").make_backend(DRIVER.get_current_target())
        jit = import_module("triton.runtime.jit")
        made = backend, jit.create_function_from_signature(kernel.signature, kernel.params, backend)
        kernel.__dict__["_capfuzz_binder"] = made
    return made


class _Arguments:
    """Bound arguments, taken apart: the tensors, and what the interpreter makes of each argument given their addresses."""

    def __init__(self, runtime: Runtime, kernel: Any, bound: _Bound) -> None:
        self.tensors: list[torch.Tensor] = []
        self._runtime = runtime
        self._position = 0
        constants = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
        self.templates = {
            name: self._constant(value) if name in constants else self._template(value, bound.types[name][0])
            for name, value in bound.values.items()
        }

    def _constant(self, value: Any) -> Any:
        self._position += 1
        return value.value if isinstance(value, _interpreter().tl.constexpr) else value

    def _template(self, value: Any, kind: Any) -> Any:
        interpreter = _interpreter()
        if isinstance(kind, tuple):
            items = [self._template(item, item_kind) for item, item_kind in zip(value, kind, strict=True)]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        position, self._position = self._position, self._position + 1
        if kind.startswith("tensordesc"):
            index = self._pointed_at(value.base, position)
            descriptor = copy.copy(value)
            descriptor.base = None
            return interpreter.Descriptor(index, descriptor)
        if kind.startswith("*"):
            if isinstance(value, int) or not hasattr(value, "data_ptr"):  # an address as a number; `None` is a null pointer
                return interpreter.Pointer(kind, None, value or 0)
            return interpreter.Pointer(kind, self._pointed_at(value, position))
        if kind == "constexpr":  # an argument of 1, which the compiler makes a constant of, or `None`
            return value if value is None else interpreter.Scalar("i32", value)
        return interpreter.Scalar(kind, value)

    def _pointed_at(self, value: Any, position: int) -> int:
        """The number of the tensor that an argument points at. Triton asks the driver for each address whether it knows it."""
        tensor = value if isinstance(value, torch.Tensor) else value.base  # `triton.reinterpret`
        if not is_sim(tensor) and tensor not in self._runtime.pinned and tensor.data_ptr():
            raise ValueError(f"Pointer argument (at {position}) cannot be accessed from Triton (cpu tensor?)")
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _extents(grid: Any) -> tuple[int, int, int]:
    """The grid as Triton reads it: one to three integers. A tensor among them is read by the host."""
    given = [grid[axis] if axis < len(grid) else 1 for axis in range(3)]
    columns, rows, layers = (operator.index(extent) for extent in given)
    return columns, rows, layers


def _interpreter() -> Any:
    try:
        from capfuzz.devices.sim import triton_interpreter
    except (ImportError, AttributeError) as error:
        version = getattr(sys.modules.get("triton"), "__version__", "of unknown version")
        raise NotModelledError(f"Triton {version}: its interpreter is not the one that is known here ({error})") from error
    return triton_interpreter


# -- launching ---------------------------------------------------------------------------------------------------------


def _run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """`JITFunction.run`: every launch of every kernel comes here."""
    runtime = current()
    if kernel.is_gluon():
        raise NotModelledError(f"{kernel.__name__} is a Gluon kernel, for which Triton has no interpreter")
    for hook in kernel.pre_run_hooks:
        hook(*args, **kwargs)
    with _no_modes():
        bound = _Bound(kernel, args, kwargs)
    if warmup:
        return CompiledKernel(kernel)
    if callable(grid):
        grid = grid(bound.values)
    extents = _extents(grid)
    with _no_modes():
        arguments = _Arguments(runtime, kernel, bound)
        columns, rows, layers = extents
        if columns * rows * layers > 0:
            if any(not 0 < extent <= largest for extent, largest in zip(extents, _LARGEST_GRID, strict=True)):
                raise RuntimeError("Triton Error [CUDA]: invalid argument")
            launch = _interpreter().Launch(kernel, arguments.templates, extents, bound.debug, runtime.pinned)
            _launch(runtime, f"triton.{kernel.__name__}", launch, arguments.tensors)
    return CompiledKernel(kernel)


def _launch(runtime: Runtime, name: str, launch: Any, tensors: list[torch.Tensor]) -> None:
    capture = runtime.capturing
    if capture is not None:
        _record(runtime, capture, name, launch, tensors)
    elif runtime.capture is not None:  # on a stream outside the capture: at once, on memory that the capture has not touched
        with runtime.capture.set_aside():
            _step(launch, *tensors)
        if runtime.tracer is not None and runtime.tracer.of_capture:
            runtime.tracer.add(name, "at once", tensors)
    else:
        _step(launch, *tensors)
        if runtime.tracer is not None:
            runtime.tracer.add(name, "kernel", tensors)


def _record(runtime: Runtime, capture: Capture, name: str, launch: Any, tensors: list[torch.Tensor]) -> None:
    """One node. The kernel runs once for the ops that come later; what it wrote is put back when capture ends, and in host
    memory at once, because the host may look there."""
    capture.check_valid()
    pinned: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(tensor: torch.Tensor) -> None:
        if is_sim(tensor):
            capture.save(tensor)
        else:
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            pinned.append((whole, whole.clone()))

    for tensor in tensors:
        keep(tensor)
    try:
        _step(launch, *tensors, meets=keep)
    except (CudaError, IllegalAccessError):
        pass  # the run's fault, whose values are not the replay's: the hardware has run nothing yet
    finally:
        for whole, kept in reversed(pinned):
            whole.copy_(kept)
    runtime.stream.work += 1
    capture.add(Node(name, "kernel", partial(_step, launch, *tensors), tensors, trace.here()))


def _step(launch: Any, *tensors: torch.Tensor, meets: Callable[[torch.Tensor], None] | None = None) -> None:
    launch.run(*(plain(tensor) for tensor in tensors), meets=meets)


class CompiledKernel:
    """What a launch and `kernel.warmup` return. It can be launched; of its registers and shared memory nothing is known."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.name = kernel.__name__

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def runner(*args: Any, stream: Any = None) -> None:
            _run(self._kernel, *args, grid=grid, warmup=False)

        return runner

    def _init_handles(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name in ("asm", "metadata", "n_regs", "n_spills", "n_max_threads"):
            raise NotModelledError(f"nothing is compiled on the simulated device: a kernel has no `{name}`")
        raise AttributeError(name)


def _run_interpreted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    """A kernel decorated under `TRITON_INTERPRET=1` is on the device like any other."""
    jit = kernel.__dict__.get("_capfuzz_jit")
    if jit is None:
        jit = kernel.__dict__["_capfuzz_jit"] = import_module("triton.runtime.jit").JITFunction(kernel.fn, **kernel.kwargs)
        jit.pre_run_hooks = kernel.pre_run_hooks
    return _run(jit, *args, **kwargs)


def install(names: Replacements) -> None:
    """Puts the simulated launch in the place of Triton's, where there is a Triton."""
    try:
        if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
            return
        jit, autotuner = import_module("triton.runtime.jit"), import_module("triton.runtime.autotuner")
        interpreter, driver = import_module("triton.runtime.interpreter"), type(import_module("triton.runtime").driver)
        real: property = driver.active
    except Exception:  # an installation that does not work: whoever imports it will be told
        return
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) if name == "triton" or name.startswith("triton.") else None
        if file is not None:
            trace._internal[file] = True  # no line of Triton's is the user's
    names.functions(jit.JITFunction, {"run": _run})
    names.functions(interpreter.InterpretedFunction, {"run": _run_interpreted})
    names.functions(autotuner.Autotuner, {"run": autotuned})
    names.put(driver, "active", property(lambda self: DRIVER if active() is not None else real.__get__(self)))
