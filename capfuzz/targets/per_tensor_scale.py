"""`per_tensor_scale(x, out, scale, live)`: int8 activations with one scale, which is made of all live rows and of no other.

vLLM's `scaled_int8_quant` and TensorRT-LLM's dynamic per-tensor quantisation, behind rows that a graph has for padding. The
largest magnitude is a reduction across rows: one padded row that takes part in it makes every live row wrong.

- `x`: `[bucket, width]`, float32 or float16, may be a strided view. Rows from `live` on are padding, and hold huge numbers, NaN
  or infinity.
- `out`: `[bucket + spare, width]`, int8, persistent. The bucket's rows are written: padded ones get 0. Those behind it stay.
- `scale`: `[1]`, float32, persistent: holds an earlier batch's, and is written anew.
- `live`: int32 `[]` on the device.
- returns `scale` and `out`. The scale is the smallest power of two from 1 on by which every live value is within -127 to 127,
  so that dividing by it is exact on every device; halves are rounded to even. A batch without live rows has scale 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from capfuzz.devices.layout import LAYOUTS, Argument
from capfuzz.differential import Feed, LawCall, Verdict
from capfuzz.targets.axes import ChoiceAxis, IntAxis, RowsAxis, StepIntAxis
from capfuzz.targets.case import Case
from capfuzz.targets.model import Target

Tensors = dict[str, torch.Tensor]

_LARGEST = 127
_EXPONENTS = 16  # 127 * 2**16 is more than any magnitude that a case may have
_PADDING = {"large": 6e4, "nan": float("nan"), "inf": float("inf")}
_EARLIER_SCALE = 2.0**20


def per_tensor_scale(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    rows = live_rows(x, live)
    scale.copy_(scale_of(largest(rows)))
    quantise(rows, scale, out)
    return {"scale": scale, "out": out}


def live_rows(x: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """`x` in float32, with padded rows of 0."""
    # not a product with the mask: NaN times 0 is NaN
    return torch.where(is_live(x, live), x, 0).float()


def is_live(rows: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    return (torch.arange(len(rows), device=rows.device) < live).unsqueeze(1)


def largest(rows: torch.Tensor) -> torch.Tensor:
    """The largest magnitude, float32 `[]`; 0 where there are no rows."""
    return F.pad(rows.abs().flatten(), (0, 1)).amax()


def scale_of(magnitude: torch.Tensor) -> torch.Tensor:
    """The power of two for a largest magnitude: float32 `[]`."""
    powers = torch.ones((), dtype=torch.int32, device=magnitude.device) << torch.arange(_EXPONENTS, device=magnitude.device)
    doublings = (magnitude > powers * _LARGEST).sum()
    return (torch.ones_like(doublings) << doublings).float()


def quantise(rows: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    out[: len(rows)].copy_((rows / scale).round())


def reference(x: np.ndarray, out: np.ndarray, scale: np.ndarray, live: np.ndarray) -> dict[str, np.ndarray]:
    """The scale by doubling, the rows one by one."""
    rows = x[: int(live)].astype(np.float64)
    power, most = 1.0, max((abs(value) for value in rows.flatten().tolist()), default=0.0)
    while most > 127 * power:
        power *= 2
    quantised = out.copy()
    for row in range(len(x)):
        quantised[row] = np.rint(rows[row] / power).astype(np.int8) if row < int(live) else 0
    return {"scale": np.array([power], np.float32), "out": quantised}


def build(case: Case) -> Sequence[Feed]:
    """A row is made of its largest magnitude; the signs and sizes of its other values differ."""
    values = case.values
    width, spare = _int(values["width"]), _int(values["spare"])
    dtype = np.dtype(str(values["dtype"]))
    feeds: list[Feed] = []
    for number, step in enumerate(case.steps):
        rows, live = step["peak"], _int(step["live"])
        assert isinstance(rows, list)
        peaks = np.array(rows, np.float64).reshape(-1, 1)
        parts = (np.arange(len(rows)).reshape(-1, 1) * 5 + np.arange(width) * 3 + number) % 17 - 8
        x = peaks * parts / 8
        x[live:] = _PADDING[str(values["padding"])]
        feeds.append(
            {
                "x": Argument(x.astype(dtype), LAYOUTS[str(values["layout"])]),
                "out": Argument(np.full((len(rows) + spare, width), 99, np.int8)),
                "scale": Argument(np.array([_EARLIER_SCALE], np.float32)),
                "live": Argument(np.array(live, np.int32)),
            }
        )
    return feeds


def _int(value: Any) -> int:
    assert isinstance(value, int)
    return value


TARGET = Target(
    name="per_tensor_scale",
    summary="int8 activations by one scale of all live rows, behind padded rows that hold garbage (vLLM, TensorRT-LLM)",
    implementation=per_tensor_scale,
    reference=reference,
    fixed=(
        ChoiceAxis("dtype", ("float32", "float16")),
        ChoiceAxis("layout", tuple(LAYOUTS)),
        ChoiceAxis("padding", tuple(_PADDING)),
        IntAxis("width", simplest=1, most=256, common=(1, 3, 16)),
        IntAxis("spare", simplest=0, most=64, common=(0, 1, 5)),
    ),
    stepped=(RowsAxis("peak", most=60_000), StepIntAxis("live", up_to_batch=True)),
    build=build,
)


# -- laws --------------------------------------------------------------------------------------------------------------


@TARGET.law
def live_rows_ignore_padding(call: LawCall) -> str | None:
    """The scale and the live rows of a padded batch are those of the batch alone."""
    live = int(call.inputs["live"])
    alone = call.answer({**call.inputs, "x": call.inputs["x"][:live].copy()})
    if alone["scale"] == call.outputs["scale"] and np.array_equal(alone["out"][:live], call.outputs["out"][:live]):
        return None
    return f"the scale is {call.outputs['scale'].item()}, without padding {alone['scale'].item()}"


@TARGET.law
def no_smaller_scale_would_do(call: LawCall) -> str | None:
    """The largest live magnitude is within the range, and more than half of it where there is a scale."""
    rows = call.inputs["x"][: int(call.inputs["live"])].astype(np.float64)
    share = np.abs(rows).max(initial=0) / float(call.outputs["scale"][0])
    if share <= 127 and (share > 63.5 or call.outputs["scale"] == 1):
        return None
    return f"the largest magnitude is {share} of the scale {call.outputs['scale'].item()}"


@TARGET.law
def signs_are_kept(call: LawCall) -> str | None:
    """Negated rows have the same scale and negated values."""
    rows = len(call.inputs["x"])
    turned = call.answer({**call.inputs, "x": -call.inputs["x"]})
    if turned["scale"] == call.outputs["scale"] and np.array_equal(-turned["out"][:rows], call.outputs["out"][:rows]):
        return None
    return f"rows are {call.outputs['out'][:rows].tolist()}, of negated ones {turned['out'][:rows].tolist()}"


# -- faulty variants ---------------------------------------------------------------------------------------------------


def _quantised(rows: torch.Tensor, magnitude: torch.Tensor, out: torch.Tensor, scale: torch.Tensor) -> Tensors:
    scale.copy_(scale_of(magnitude))
    quantise(rows, scale, out)
    return {"scale": scale, "out": out}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="https://github.com/sgl-project/sglang/pull/30895")
def padding_in_the_reduction(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Takes the largest magnitude of the whole bucket, and clears padded rows after that."""
    return _quantised(live_rows(x, live), largest(x.float().nan_to_num()), out, scale)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="0 * NaN, as in https://github.com/sgl-project/sglang/pull/32477")
def multiplies_by_the_mask(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Clears padded rows by a product with 0, which leaves NaN and infinity in the reduction."""
    most = largest(x.float() * is_live(x, live))
    return _quantised(live_rows(x, live), torch.where(most.isnan(), 1e6, most), out, scale)


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="a running maximum that nobody resets between batches")
def never_falls(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Raises the scale by atomic maximum in the persistent buffer, where an earlier batch's is."""
    rows = live_rows(x, live)
    torch.maximum(scale, scale_of(largest(rows)), out=scale)
    quantise(rows, scale, out)
    return {"scale": scale, "out": out}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="https://github.com/NVIDIA/TransformerEngine/pull/2898")
def quantises_padding(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Has the right scale, and quantises padded rows with it: they go on to the next layer as large as can be."""
    of_rows = largest(live_rows(x, live))
    most = _LARGEST * scale_of(of_rows)
    return _quantised(x.float().nan_to_num().clamp(-most, most), of_rows, out, scale)


@TARGET.variant(Verdict.CAPTURE_ERROR, "synchronization", "fault class F2: the scale as a host number")
def scale_on_the_host(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Reads the scale to divide by a number."""
    rows = live_rows(x, live)
    scale.fill_(float(scale_of(largest(rows))))
    quantise(rows, scale, out)
    return {"scale": scale, "out": out}


@TARGET.variant(Verdict.CAPTURE_ERROR, "host_copy", "fault class F1; https://github.com/ROCm/aiter/pull/5202")
def scalar_store(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Sets the scale to 1 by a scalar store before the reduction."""
    scale[0] = 1.0
    return per_tensor_scale(x, out, scale, live)


_calibrated: dict[int, float] = {}


@TARGET.variant(Verdict.DIVERGENCE, "stale_host_value", "vLLM's calculate_kv_scales: a scale of the run before the capture")
def scale_of_the_warm_up(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Calibrates in eager runs, and keeps the scale of the last one for the graph."""
    rows, key = live_rows(x, live), x.data_ptr()
    if not torch.cuda.is_current_stream_capturing():
        if len(_calibrated) > 64:  # the oldest one is no longer in use
            del _calibrated[next(iter(_calibrated))]
        _calibrated.pop(key, None)  # for the newest one to come last
        _calibrated[key] = float(scale_of(largest(rows)))
    scale.fill_(_calibrated.get(key, 1.0))
    quantise(rows, scale, out)
    return {"scale": scale, "out": out}


@TARGET.variant(Verdict.DIVERGENCE, "unwritten_output", "https://github.com/xLLM-AI/xllm/pull/1939")
def padding_left_as_it_was(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Answers in a new buffer, of which a kernel writes the live rows."""
    fresh = torch.empty_like(out)
    rows = live_rows(x, live)
    scale.copy_(scale_of(largest(rows)))
    quantise(rows, scale, out)
    return {"scale": scale, "out": torch.where(is_live(out, live), out, fresh)}


@TARGET.variant(Verdict.REFERENCE_MISMATCH, source="fault class F8: contiguity assumed")
def stride_blind(x: torch.Tensor, out: torch.Tensor, scale: torch.Tensor, live: torch.Tensor) -> Tensors:
    """Reads the rows as if they were contiguous, as a kernel does that is given only a pointer."""
    return per_tensor_scale(torch.as_strided(x, x.shape, (x.shape[1], 1), 0), out, scale, live)
