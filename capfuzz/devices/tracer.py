"""Collecting the op trace of one run: what `capfuzz` needs to blame a divergence on a line, and to show a capture op by op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from capfuzz.devices.op_facts import reads_shape_alone
from capfuzz.devices.trace import Location, Operand, OpRecord, caller, here

if TYPE_CHECKING:
    from capfuzz.devices.base import Body, Device

# In-place ops that do not look at what they overwrite.
_OVERWRITING = frozenset(["copy_", "fill_", "zero_", "set_", "normal_", "uniform_", "random_", "exponential_", "geometric_"])
_NUMBERS = (bool, int, float, complex)
# What reads a host tensor's values without launching an op that a trace has: from `torch.Tensor`, by name.
_HOST_READS: dict[Any, str] = {
    getattr(torch.Tensor, name): name
    for name in ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__complex__", "__index__")
}


def host_values(tensor: torch.Tensor) -> np.ndarray:
    """A host copy of a tensor's values, bit for bit. Call it with no mode active.

    dtypes that NumPy lacks (bfloat16, the float8 family) come back as unsigned integers of their width.
    """
    data = tensor.detach()
    if data.__class__ is not torch.Tensor:
        data = torch.Tensor.as_subclass(data, torch.Tensor)
    copy = data.to("cpu", copy=True).resolve_conj()  # memory that NumPy has seen can never grow: not the implementation's own
    try:
        array: np.ndarray = copy.numpy()
    except TypeError:
        width = {1: torch.uint8, 2: torch.int16}[copy.element_size()]
        array = copy.contiguous().view(width).numpy()
    return array


class Tracer:
    """A list of op records; with `values`, every record keeps what the op wrote; with `within`, where in that code it was.

    `of_capture`: the trace of a capture, which also has what the capture runs without recording it.
    """

    def __init__(self, values: bool = False, within: CodeType | None = None, of_capture: bool = False) -> None:
        self.records: list[OpRecord] = []
        self.values = values
        self.within = within
        self.of_capture = of_capture

    def add(
        self,
        op: str,
        kind: str,
        written: Any,
        location: Location | None = None,
        read: Any = (),
        baked: tuple[Any, ...] = (),
    ) -> None:
        tensors = list(_tensors(written))
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
            self.records.append(
                OpRecord(
                    op,
                    here() if location is None else location,
                    kind,
                    tuple(t.untyped_storage()._cdata for t in tensors if t.layout is torch.strided),
                    [host_values(t) for t in tensors] if self.values and kind not in ("alloc", "view") else [],
                    baked,
                    None if self.within is None else caller(self.within, 2),
                    tuple(map(_operand, _tensors(read))),
                    tuple(map(_operand, tensors)),
                )
            )

    def add_call(
        self,
        op: str,
        kind: str,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        location: Location | None = None,
    ) -> None:
        """Adds an op by its schema: which arguments it read, which it wrote, and the host's values among them."""
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
            read, written, baked = _by_schema(func, args, kwargs)
        self.add(op, kind, written or result, location, read, baked if kind == "kernel" else ())

    def add_unrecorded(
        self, op: str, kind: str, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Adds what a capture runs and does not record; no other trace wants it."""
        if self.of_capture:
            self.add_call(op, kind, func, args, kwargs, result)

    def watching(self, body: Body) -> Body:
        """`body`, with what it reads on the host without an op traced too."""

        def watched() -> Any:
            with _HostReads(self):
                return body()

        return watched


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _operand(tensor: torch.Tensor) -> Operand:
    shape = () if tensor.is_nested else tuple(tensor.shape)
    return Operand(str(tensor.dtype).removeprefix("torch."), shape, tensor.device.type)


def _by_schema(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor], tuple[Any, ...]]:
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    baked: list[Any] = []
    overwrites = func._schema.name.split("::")[1] in _OVERWRITING
    for index, argument in enumerate(func._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        tensors = list(_tensors(value))
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tensors
            read += [] if overwrites or argument.is_out else tensors
            continue
        read += tensors
        kind = str(argument.type)
        if "Tensor" in kind or "number" in kind:
            baked += [] if type(value) in _NUMBERS and value == argument.default_value else _host_operands(value)
    return read, written, tuple(baked)


def _host_operands(value: Any) -> Iterator[Any]:
    """The numbers, and the values of the host tensors, in an argument that stands for a tensor or a scalar."""
    if isinstance(value, _NUMBERS):
        yield value
    elif isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            yield value.tolist()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _host_operands(item)


class _HostReads(TorchFunctionMode):
    """Traces the Python calls that read a host tensor's values, instead of the ops that some of them make on the way."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _HOST_READS.get(func)
        if name is None or args[0].device.type != "cpu":
            return func(*args, **(kwargs or {}))
        before = len(self.tracer.records)
        result = func(*args, **(kwargs or {}))
        del self.tracer.records[before:]
        self.tracer.add(name, "host", (), read=args[0])
        return result


@dataclass
class CaptureTrace:
    """What a capture did, op by op, and what it failed with; `warm_up`: it is the eager call before that failed."""

    records: list[OpRecord] = field(default_factory=list)
    error: BaseException | None = None
    warm_up: bool = False


def trace_capture(device: Device, body: Body, seed: int, refill: Callable[[], None] | None = None) -> CaptureTrace:
    """Calls `body` once eagerly, `refill` (puts back what that changed), then captures `body` and traces it.

    What `body` raises is caught here and not further out, so that no frame outside of devices can be blamed for it.
    """
    try:
        device.eager(body, seed)
    except (Exception, SystemExit) as error:
        return CaptureTrace(error=error, warm_up=True)
    if refill is not None:
        refill()
    tracer = Tracer(of_capture=True)
    try:
        device.capture(body, seed, tracer).close()
    except (Exception, SystemExit) as error:
        return CaptureTrace(_as_called(tracer.records), error)
    return CaptureTrace(_as_called(tracer.records))


def _as_called(records: list[OpRecord]) -> list[OpRecord]:
    """Without the `detach` by which PyTorch wraps what a factory made, if somebody else (a graph's node) holds that too."""
    before: list[OpRecord | None] = [None, *records]
    return [record for left, record in zip(before, records, strict=False) if left is None or not _wraps(record, left)]


def _wraps(record: OpRecord, made: OpRecord) -> bool:
    is_factory = bool(made.storages) and (not made.read or reads_shape_alone(made.op.split(".")[0]))
    same = (record.storages, record.location) == (made.storages, made.location)
    return record.op == "detach" and is_factory and same
