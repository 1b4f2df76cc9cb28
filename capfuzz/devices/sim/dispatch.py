"""The dispatch mode: every ATen op comes through here, and is handed to what the table says of it."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from capfuzz.devices.sim.ops import _ops, lookup
from capfuzz.devices.sim.runtime import Runtime


class SimDispatchMode(TorchDispatchMode):
    """Thin on purpose: rules live in tables, state in the runtime."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runtime = runtime

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap the handler in a guard against torch.compile, which costs a third of every op.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = _ops.get(id(func)) or lookup(func)
        if not op.is_plain:
            self.runtime.met_a_rule = True
        return op.run(self.runtime, op, args, kwargs or {})
