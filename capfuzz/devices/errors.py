"""What CUDA and PyTorch say when a capture goes wrong, and which rule each text belongs to.

One table serves both devices. `sim` raises with these texts, so that a user reads what the GPU would print; `cuda` and HIP
exceptions are classified by the same patterns. Texts recorded on an H200 with torch 2.11.0+cu130.
"""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import NoReturn

import torch

from capfuzz.devices.trace import Location


class Rule(str, Enum):
    """Why a capture was refused (the `capture_error` causes)."""

    HOST_COPY = "host_copy"
    SYNCHRONIZATION = "synchronization"
    UNJOINED_STREAM = "unjoined_stream"
    FOREIGN_STREAM = "foreign_stream"
    NESTED_CAPTURE = "nested_capture"
    ALLOCATION = "allocation"
    HOST_EXCEPTION = "host_exception"


HOST_COPY_TEXT = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
    "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
_CUDA_SUFFIX = (
    "\nSearch for `{code}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more"
    " information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below"
    " might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to"
    " enable device-side assertions.\n"
)
_CUDA_CODES = {
    "cudaErrorStreamCaptureUnsupported": "operation not permitted when stream is capturing",
    "cudaErrorStreamCaptureInvalidated": "operation failed due to a previous error during capture",
    "cudaErrorStreamCaptureUnjoined": "capturing stream has unjoined work",
    "cudaErrorStreamCaptureIsolation": "dependency created on uncaptured work in another stream",
    "cudaErrorCapturedEvent": "operation not permitted on an event last recorded in a capturing stream",
    "cudaErrorIllegalState": "the operation cannot be performed in the present state",
    "cudaErrorStreamCaptureImplicit": "operation would make the legacy stream depend on a capturing blocking stream",
    "cudaErrorInvalidValue": "invalid argument",
    "cudaErrorAssert": "device-side assert triggered",
}


class CudaError(torch.AcceleratorError):
    """A CUDA runtime error as PyTorch raises it, with the rule that it breaks (None: not about capture).

    A traceback names it as what it stands for.
    """

    def __init__(self, code: str, rule: Rule | None = None) -> None:
        super().__init__(f"CUDA error: {_CUDA_CODES[code]}{_CUDA_SUFFIX.format(code=code)}")
        self.code = code
        self.rule = rule


CudaError.__name__ = CudaError.__qualname__ = torch.AcceleratorError.__name__
CudaError.__module__ = "torch"


class ThrustError(RuntimeError):
    """A wait inside an algorithm of Thrust or CUB, in its own words."""

    rule = Rule.SYNCHRONIZATION

    def __init__(self, algorithm: str) -> None:
        code = "cudaErrorStreamCaptureUnsupported"
        super().__init__(f"{algorithm}: failed to synchronize: {code}: {_CUDA_CODES[code]}")


class HostCopyError(RuntimeError):
    """PyTorch's own refusal of a pageable copy during capture; it does not invalidate the capture."""

    rule = Rule.HOST_COPY

    def __init__(self) -> None:
        super().__init__(HOST_COPY_TEXT)


class GeneratorError(RuntimeError):
    """A draw that PyTorch refuses before it launches anything."""


for _error in (ThrustError, HostCopyError, GeneratorError):
    _error.__name__ = _error.__qualname__ = "RuntimeError"
    _error.__module__ = "builtins"


class DanglingBufferError(RuntimeError):
    """A graph uses memory that its owner has freed. The hardware says nothing, and uses what lies there now.

    `op` and `location` are the first node's that uses it.
    """

    def __init__(self, what: str, op: str, location: Location | None) -> None:
        where = "" if location is None else f" ({location.text!r}, {os.path.basename(location.file)}:{location.line})"
        super().__init__(
            f"the graph uses an outside buffer, {what}, that its owner has freed: {op}{where} would use what lies there now. "
            "Keep a reference to every buffer that a graph was captured with for as long as the graph is replayed."
        )
        self.op = op
        self.location = location


class NotModelledError(RuntimeError):
    """The simulated device does not know what the hardware does here, and says so rather than guess."""


def not_permitted(rule: Rule = Rule.SYNCHRONIZATION) -> CudaError:
    return CudaError("cudaErrorStreamCaptureUnsupported", rule)


def at_node(error: Exception, op: str, location: Location | None) -> Exception:
    """`error`, knowing the node of the graph that a replay ended at: its op, and the user's line that launched it."""
    error.__dict__["node"] = (op, location)
    return error


def node_of(error: BaseException) -> tuple[str | None, Location | None]:
    """The op and the line that `at_node` has told of; None and None for an error that came in another way."""
    node: tuple[str | None, Location | None] = error.__dict__.get("node", (None, None))
    return node


_PATTERNS: tuple[tuple[str, Rule], ...] = (
    (r"Cannot copy between CPU and (CUDA|HIP) tensors during (CUDA|HIP) graph capture", Rule.HOST_COPY),
    (r"capturing stream has unjoined work", Rule.UNJOINED_STREAM),
    (r"dependency created on uncaptured work in another stream", Rule.FOREIGN_STREAM),
    (r"would make the legacy stream depend on a capturing blocking stream", Rule.FOREIGN_STREAM),
    (r"operation not permitted on an event last recorded in a capturing stream", Rule.SYNCHRONIZATION),
    (r"operation not permitted when stream is capturing", Rule.SYNCHRONIZATION),
    # seen without its cause only when the code under test swallowed that
    (r"operation failed due to a previous error during capture", Rule.SYNCHRONIZATION),
)
_MASKED = re.compile(r"operation failed due to a previous error during capture")


def root_cause(error: BaseException) -> BaseException:
    """The exception that broke the capture: `torch.cuda.graph.__exit__` masks it, and leaves it in `__context__`."""
    seen: set[int] = set()
    while _MASKED.search(str(error)) and error.__context__ is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__context__
    return error


def rule_of(error: BaseException) -> Rule:
    """The rule that a capture exception breaks, from the device's own knowledge or else from the text."""
    known = getattr(root_cause(error), "rule", None)
    return known if isinstance(known, Rule) else rule_of_text(error)


def rule_of_text(error: BaseException) -> Rule:
    """The rule as far as CUDA's words tell it: one text stands for a wait, an allocation and a nested capture alike."""
    text = str(root_cause(error))
    for pattern, rule in _PATTERNS:
        if re.search(pattern, text):
            return rule
    return Rule.HOST_EXCEPTION


def first_line(error: BaseException) -> str:
    """The message without CUDA's five lines of advice."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def invalid_device(index: int) -> NoReturn:
    raise RuntimeError(f"CUDA error: invalid device ordinal (device cuda:{index} asked for; the simulated machine has 1)")
