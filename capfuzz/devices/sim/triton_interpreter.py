"""Running a Triton kernel on memory as it lies, with Triton's own interpreter.

Triton's interpreter is made for a process that runs under `TRITON_INTERPRET=1`: a kernel is another object there, its arguments
are copied to the host and back, its module gets the interpreter's names, and a helper leaves `triton.language` patched. Here a
kernel that was decorated for the compiler is run, its helpers too, on the addresses that it is given, and everything is put
back. What does the work is Triton's: the rewritten function, the builder, the patched language.

What only the compiler refuses (a global that is no constexpr, types of a loop variable that change) is not seen; inline
assembly and `libdevice` are not there. Imported when a kernel is launched first, and only then.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from capfuzz.devices.errors import CudaError, NotModelledError
from capfuzz.devices.sim.tensor import PinnedMemory
from capfuzz.devices.sim.triton_memory import CheckedAccess

_interpreter: Any = import_module("triton.runtime.interpreter")
_jit: Any = import_module("triton.runtime.jit")
_compiler_errors: Any = import_module("triton.compiler.errors")
tl: Any = import_module("triton.language")
_JITFunction = _jit.JITFunction
_MISSING = object()
# The interpreter patches modules and has one grid: one kernel at a time.
_lock = threading.RLock()


# -- arguments ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pointer:
    """An address: of the launch's tensor number `index`, or a number that the caller gave. `kind` is Triton's type name."""

    kind: str
    index: int | None
    address: int = 0


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A number, baked when the kernel is launched."""

    kind: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """A host-made tensor descriptor over the launch's tensor number `index`; it holds none itself."""

    index: int
    descriptor: Any


def _made(template: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
    """What the kernel's function is given for an argument."""
    if isinstance(template, Pointer):
        address = template.address if template.index is None else tensors[template.index].data_ptr()
        return _tensor(np.array([address], np.uint64), tl.str_to_ty(template.kind, None))
    if isinstance(template, Scalar):
        return _scalar(template)
    if isinstance(template, Descriptor):
        descriptor = copy.copy(template.descriptor)
        descriptor.base = tensors[template.index]
        return _interpreter._implicit_cvt(descriptor)
    if isinstance(template, tuple):
        items = [_made(item, tensors) for item in template]
        return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)
    return template


def _tensor(data: np.ndarray, kind: Any) -> Any:
    return tl.tensor(_interpreter.TensorHandle(data, kind), kind)


def _scalar(template: Scalar) -> Any:
    kind = tl.str_to_ty(template.kind, None)
    if kind.is_floating() and kind not in (tl.float32, tl.float64):
        return _interpreter.interpreter_semantic.cast(_tensor(np.array([template.value], np.float32), tl.float32), kind)
    return _tensor(np.array([template.value], _interpreter._get_np_dtype(kind)), kind)


# -- functions ---------------------------------------------------------------------------------------------------------


class Interpretable:
    """A `@triton.jit` function as the interpreter runs it: rewritten, in a namespace of its own.

    The namespace is full only while a kernel runs: it must keep no tensor of the user's module alive.
    """

    def __init__(self, jit: Any) -> None:
        self.fn = fn = jit.fn
        self._namespace: dict[str, Any] = {}
        self._function = FunctionType(_rewritten(fn), self._namespace, fn.__name__, fn.__defaults__)
        self._function.__kwdefaults__ = fn.__kwdefaults__

    def function(self) -> Callable[..., Any]:
        """The function, seeing its globals and closure as they are now: helpers may be defined after it."""
        if not self._namespace:
            _filled.append(self._namespace)
            self._namespace.update(vars(_interpreter))
            self._namespace.update(self.fn.__globals__)
            for name, cell in zip(self.fn.__code__.co_freevars, self.fn.__closure__ or (), strict=True):
                self._namespace[name] = cell.cell_contents
        return self._function


_filled: list[dict[str, Any]] = []


def interpretable(jit: Any) -> Interpretable:
    known = jit.__dict__.get("_capfuzz_interpretable")
    if known is None or known.fn is not jit.fn:
        known = jit.__dict__["_capfuzz_interpretable"] = Interpretable(jit)
    made: Interpretable = known
    return made


def _rewritten(fn: Any) -> CodeType:
    """The function's code after Triton's rewriting.

    Triton executes the rewritten `def` in the function's own module, which fails for one that is nested and leaves names there:
    here its code alone is taken. Names of an enclosing function are globals to it.
    """
    rewriter = _interpreter.FunctionRewriter(fn)
    rewriter._compile_and_exec = lambda tree: _code(tree, rewriter.filename)
    code = rewriter.rewrite_ast()
    if not isinstance(code, CodeType):
        raise NotModelledError(f"the source of the Triton function {fn.__qualname__} cannot be read")
    return code


def _code(tree: Any, filename: str) -> CodeType:
    definition = tree.body[0]
    arguments = definition.args
    arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)  # the original's own are used
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    definition.returns, definition.decorator_list = None, []
    module = compile(ast.fix_missing_locations(tree), filename, "exec")
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


def _call_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`JITFunction.__call__` while a kernel is interpreted."""
    return interpretable(self).function()(*args, **kwargs)


def _as_method(jit: Any) -> Callable[..., Any]:
    """`x.sum(0)`: the compiler finds the helper on the class, Python would not bind it."""
    return lambda self, *args, **kwargs: _call_helper(jit, self, *args, **kwargs)


def _comparison(original: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter gives a comparison its operands' type, and one that is then broadcast is no mask any more."""

    def compare(lhs: Any, rhs: Any) -> Any:
        return _interpreter.TensorHandle(original(lhs, rhs).data, tl.int1)

    return compare


def _static_assert(cond: Any, msg: str = "", **kwargs: Any) -> None:
    if not cond:
        raise _compiler_errors.CompileTimeAssertionFailure(None, ast.Pass(), str(msg))


def _device_assert(condition: Any, message: str) -> None:
    if not bool(condition):
        raise CudaError("cudaErrorAssert")


# -- the patched language ----------------------------------------------------------------------------------------------

_table: list[tuple[Any, str, Any]] = []


def _patches() -> list[tuple[Any, str, Any]]:
    """What the language is while a kernel runs: what Triton's interpreter makes of it, learnt once, and our own."""
    if not _table:
        builder = _interpreter.interpreter_builder
        scope = _interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        try:
            patched = {(id(owner), name): (owner, name, vars(owner)[name]) for owner, name, _ in scope._changes}
        finally:
            scope.restore()
        _table.extend(patched.values())
        _table.append((_JITFunction, "__call__", _call_helper))
        members = [(name, member) for name, member in vars(tl.tensor).items() if isinstance(member, _JITFunction)]
        _table.extend((tl.tensor, name, _as_method(member)) for name, member in members)
        _table.extend((module, "static_assert", _static_assert) for module in (tl, tl.core))
        comparisons = [name for name in dir(builder) if name.startswith(("create_icmp", "create_fcmp"))]
        _table.extend((builder, name, _comparison(getattr(builder, name))) for name in comparisons)
        # NumPy refuses `int()` of an array of one element, which older interpreters ask for.
        _table.append((tl.tensor, "__index__", lambda self: int(self.handle.data.item())))
    return _table


@contextmanager
def _patched(accessors: Any, debug: bool) -> Iterator[Any]:
    """Inside, `triton.language` is the interpreter's. Everything is put back, whoever patched it inside."""
    builder = _interpreter.interpreter_builder
    for_this_run = [
        (_interpreter, "_interpreter", accessors),
        (builder, "options", dataclasses.replace(builder.options, debug=debug)),
        (builder, "create_assert", _device_assert),
        (builder, "create_assume", lambda condition: None),
    ]
    originals: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in (*_patches(), *for_this_run):
            originals.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)
        yield builder
    finally:
        for owner, name, original in reversed(originals):
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


# -- launching ---------------------------------------------------------------------------------------------------------


class Launch:
    """One launch of a kernel: what it is given, with the grid and every number baked. `run` runs it on the tensors' memory."""

    def __init__(
        self, jit: Any, arguments: dict[str, Any], grid: tuple[int, int, int], debug: bool, pinned: PinnedMemory
    ) -> None:
        self._jit = jit
        self._arguments = arguments
        self._grid = grid
        self._debug = debug
        self._pinned = pinned

    def run(self, *tensors: torch.Tensor, meets: Callable[[torch.Tensor], None] | None = None) -> None:
        """Runs every program of the grid, one after another. Call it with no mode active.

        `meets` is told of a tensor that it was not given, before it uses its memory.
        """
        with _lock:
            accessors = CheckedAccess(_interpreter, self._jit.__name__, tensors, self._pinned, meets)
            try:
                with _patched(accessors, self._debug) as builder, np.errstate(all="ignore"):
                    self._run(builder, tensors)
            finally:
                for namespace in _filled:
                    namespace.clear()
                _filled.clear()

    def _run(self, builder: Any, tensors: tuple[torch.Tensor, ...]) -> None:
        function = interpretable(self._jit).function()
        arguments = {name: _made(template, tensors) for name, template in self._arguments.items()}
        columns, rows, layers = self._grid
        builder.set_grid_dim(columns, rows, layers)
        try:
            for x in range(columns):
                for y in range(rows):
                    for z in range(layers):
                        builder.set_grid_idx(x, y, z)
                        function(**arguments)
        except (torch.AcceleratorError, _compiler_errors.CompilationError):
            raise
        except Exception as error:
            raise _interpreter.InterpreterError(f"{self._jit.__name__}: {error!r}") from error
