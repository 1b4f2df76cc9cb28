"""What the device knows of each ATen op: learnt once from its schema, kept in a table.

An op with a registered rule is judged by the rule; every other op is a kernel, a view or a factory, as its schema says. Rules
are registered by name (`@rule("aten::nonzero")`), one family of ops a module under `rules/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from capfuzz.devices.op_facts import OpFacts
from capfuzz.devices.sim.device_checks import CHECKS, checked
from capfuzz.devices.sim.iterator_ops import CPU_SCALAR_OPS

if TYPE_CHECKING:
    from capfuzz.devices.sim.runtime import Runtime

Handler = Callable[["Runtime", "Op", tuple[Any, ...], dict[str, Any]], Any]

_rules: dict[str, Handler] = {}
_tell: set[Handler] = set()
# By the overload's id, which stays its own because the entry keeps it alive: an overload's hash is computed in Python.
_ops: dict[int, Op] = {}
_BUILT_IN = frozenset(["aten", "prims", "prim", "profiler", "quantized", "_quantized", "mkldnn", "inductor", "higher_order"])
# What an `out=` overload takes from its output instead.
_FACTORY_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})


def rule(*names: str, tells: bool = False) -> Callable[[Handler], Handler]:
    """Registers a rule for ops by `namespace::name` (every overload) or `namespace::name.overload`.

    One that `tells` sets `Runtime.met_a_rule` by itself, where the call is no plain kernel.
    """

    def register(handler: Handler) -> Handler:
        for name in names:
            if name in _rules:
                raise ValueError(f"two rules for {name}")
            _rules[name] = handler
        if tells:
            _tell.add(handler)
        return handler

    return register


class Op(OpFacts):
    """The facts about one op overload that running and recording it need."""

    __slots__ = (
        "call",
        "cpu_scalars",
        "has_device",
        "is_composite",
        "is_plain",
        "out_variant",
        "run",
        "seeded",
        "takes_generator",
    )

    def __init__(self, func: OpOverload) -> None:
        from capfuzz.devices.sim import kernels, rules  # noqa: F401  (importing `rules` registers them)

        schema = func._schema
        packet = schema.name.split("::")[1]
        super().__init__(func)
        self.call = func._op  # what `func(...)` calls, without its Python frame
        check = CHECKS.get(self.name) if func.namespace == "aten" else None
        if check is not None:
            self.call = checked(func._op, check)
        names = [a.name for a in schema.arguments]
        self.seeded = torch.Tag.nondeterministic_seeded in func.tags
        self.takes_generator = "generator" in names
        self.cpu_scalars = f"{packet}.{func._overloadname}" in CPU_SCALAR_OPS
        self.has_device = "device" in names
        self.is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        self.out_variant = None if self.mutated or self.seeded or check is not None else _find_out_variant(func)
        self.run = self._choose(schema.name, func._overloadname)
        runs_plainly = (
            self.run is kernels.run_kernel or (self.run is kernels.run_view and not self.mutated) or self.run in _tell
        )
        self.is_plain = runs_plainly and not self.seeded and not self.is_empty and check is None

    def _choose(self, name: str, overload: str) -> Handler:
        handler = _rules.get(f"{name}.{overload}") or _rules.get(name)
        if handler is not None:
            return handler
        from capfuzz.devices.sim import kernels

        if self.is_composite:
            return kernels.run_composite
        if self.func.namespace not in _BUILT_IN and kernels.has_python_kernel(self.func.name()):
            return kernels.run_python_kernel
        if self.has_device:
            return kernels.run_factory
        return kernels.run_view if self.is_view else kernels.run_kernel


class OutVariant:
    """The `out=` overload of a functional op: replaying through it writes the captured memory without a copy."""

    __slots__ = ("func", "keeps", "outs")

    def __init__(self, func: OpOverload, outs: tuple[str, ...], keeps: frozenset[str]) -> None:
        self.func = func._op
        self.outs = outs
        self.keeps = keeps


def _find_out_variant(func: OpOverload) -> OutVariant | None:
    if func.namespace != "aten" or func._schema.name == "aten::_to_copy":
        return None
    tensors_out = [str(r.type) for r in func._schema.returns]
    if not tensors_out or any(t != "Tensor" for t in tensors_out):
        return None
    arguments = func._schema.arguments
    ours = [(a.name, str(a.type)) for a in arguments if not a.kwarg_only]
    options = _FACTORY_OPTIONS if any(a.name == "device" for a in arguments) else frozenset()
    needed = {a.name for a in arguments if a.kwarg_only} - options
    packet = func._overloadpacket
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        theirs = candidate._schema.arguments
        outs = tuple(a.name for a in theirs if a.is_out)
        names = frozenset(a.name for a in theirs)
        required = {a.name for a in theirs if a.kwarg_only and not a.is_out and not a.has_default_value()}
        if len(outs) != len(tensors_out) or not needed <= names or not required <= needed:
            continue
        if [(a.name, str(a.type)) for a in theirs if not a.kwarg_only and not a.is_out] == ours:
            return OutVariant(candidate, outs, names)
    return None


def lookup(func: OpOverload) -> Op:
    op = _ops.get(id(func))
    if op is None:
        op = _ops[id(func)] = Op(func)
    return op
