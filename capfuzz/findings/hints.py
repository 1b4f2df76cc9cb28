"""One way to mend a fault for each verdict and cause. Short, and correct on its own."""

from __future__ import annotations

from capfuzz.differential import Cause, Verdict
from capfuzz.findings.finding import Mend

_HINTS: dict[str, str] = {
    "capture_error:host_copy": (
        "keep the value on the device: `out[:1].zero_()` or `out[:1].fill_(v)` instead of `out[0] = v`; `F.pad` to prepend; "
        "device tensors instead of lists or CPU tensors as indices"
    ),
    "capture_error:synchronization": (
        "do not read a device value on the host inside the graph: pass it as a host argument, or keep the branch on the "
        "device with `torch.where`; give `output_size=` to `repeat_interleave`"
    ),
    "capture_error:unjoined_stream": (
        "let the capturing stream wait for the side stream before capture ends: `current.wait_stream(side)`"
    ),
    "capture_error:foreign_stream": (
        "fork the side stream first: `side.wait_stream(torch.cuda.current_stream())`, then wait only for work done after that"
    ),
    "capture_error:nested_capture": "capture one graph at a time; call the inner op directly inside the outer capture",
    "capture_error:allocation": "allocate before the capture, or on a stream that has joined it",
    "capture_error:host_exception": (
        "prepare for the capture as for a replay: what it leaves on the host must be what the code after it expects; do lazy "
        "set-up in a warm-up, before the capture"
    ),
    f"divergence:{Cause.ALIASED_OUTPUT.value}": (
        "give each graph buffers of its own, made before its capture, and hand out a copy (`out.clone()`) of what is still "
        "needed"
    ),
    f"divergence:{Cause.STALE_HOST_VALUE.value}": (
        "compute it inside the graph from the static buffer; a host value, list or cache is read once, at capture"
    ),
    f"divergence:{Cause.UNWRITTEN_OUTPUT.value}": "write every element: `torch.zeros`, or fill the part that the op leaves out",
    f"divergence:{Cause.NOT_IDEMPOTENT.value}": (
        "reset the state inside the graph (`buf.zero_()` where the capture records it), or write instead of accumulate"
    ),
    f"divergence:{Cause.HOST_STATE.value}": (
        "do not change host buffers inside what is captured: they change once, at capture, and never at replay"
    ),
    f"divergence:{Cause.OUT_OF_BOUNDS.value}": (
        "write only inside the argument: its strides and its length are not those of the base storage"
    ),
    f"divergence:{Cause.SHAPE.value}": (
        "the shape must follow from host arguments that are part of the graph's key, not from values"
    ),
    f"divergence:{Cause.DTYPE.value}": "do not branch on whether the stream is capturing",
    f"divergence:{Cause.STRUCTURE.value}": "do not branch on whether the stream is capturing",
    f"divergence:{Cause.VALUES.value}": "everything the result depends on must be read from static buffers inside the graph",
    Verdict.DANGLING_BUFFER.value: "keep every buffer that a graph was captured with for as long as the graph itself",
    Verdict.CRASH.value: "the implementation ends its process: look at the line above, or run the case alone with a debugger",
    Verdict.HANG.value: "the implementation does not come to an end on this case; `--case-timeout` says how long it was given",
    Verdict.REFERENCE_MISMATCH.value: "eager itself is wrong here: compare the op with the reference on the case shown",
    Verdict.NONDETERMINISTIC.value: "eager disagrees with itself: state is kept between calls, or an op has no fixed order",
}


def advice(label: str, mend: Mend | None) -> str | None:
    """How to mend a fault: the edit that does, where one was found, else the hint of its verdict and cause."""
    if mend is None:
        return hint(label)
    how = f"`{mend.after}` in its place" if mend.after else f"without `{mend.before}`"
    return f"{how}: right in {mend.cases} of {mend.cases} cases tried"


def hint(label: str) -> str | None:
    """How to mend a fault of that verdict and cause (`divergence:host_state`), or None where nothing general can be said."""
    return _HINTS.get(label) or _HINTS.get(label.partition(":")[0])
