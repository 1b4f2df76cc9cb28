"""Where the simulated device is known to differ from a record, and why. Everything else must agree."""

from __future__ import annotations

_DANGLING = "the hardware uses what lies there now and says nothing; the simulated device says so before the replay"

KNOWN: dict[str, str] = {
    "input_freed_and_reused": _DANGLING,
    "written_buffer_freed_and_reused": _DANGLING,
    "pinned_freed_and_reused": _DANGLING,
    "tri_input_freed_and_reused": _DANGLING,
    "pool_holds_memory": "the simulated device counts no bytes: `memory_allocated` and its like are zero",
    "weak_reference": "nodes hold the tensors that they need, so a weak reference to a dropped one lives on in a capture",
    "save_on_cpu": "autograd calls hooks with the function mode off: a host tensor made in one is taken for the device's",
    "autocast_dtypes": "autocast follows the CPU's lists of ops: a sum stays in half precision, on a GPU it is single",
    "deterministic_refused": "which CUDA kernels the deterministic flag refuses is not modelled",
    "linalg_eigvalsh": "cuSOLVER itself fails during capture, in its own words; the simulated device says `not modelled`",
}
"""Idiom -> the reason. A test fails if an idiom that stands here agrees after all."""
