"""How closely the real device looks, and what it reads back, in this process. Skipped where there is no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import poison
from capfuzz.devices.base import LookAgainError
from capfuzz.devices.cuda import staging
from capfuzz.devices.cuda.device import CLOSELY_AT_FIRST, USERS_WAY_EVERY, CudaDevice
from capfuzz.devices.errors import DanglingBufferError
from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.devices.tracer import host_values
from capfuzz.differential import Verdict, check
from capfuzz.targets import get_target

HAS_GPU = bool(list(Path("/dev").glob("nvidia[0-9]*"))) or Path("/dev/kfd").exists()
pytestmark = pytest.mark.skipif(
    not HAS_GPU or (torch.version.cuda is None and torch.version.hip is None), reason="there is no GPU that this torch can use"
)
FEEDS = [{"x": Argument(np.arange(step, step + 4))} for step in range(3)]


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    with CudaDevice() as device:
        yield device


def test_a_device_that_cannot_be_opened_leaves_torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("planted defect")

    before = torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph
    monkeypatch.setattr(CudaDevice, "_check_poison", fail)
    with pytest.raises(RuntimeError, match="planted defect"), CudaDevice():
        pass
    assert (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph) == before


@pytest.fixture
def settled(gpu: CudaDevice) -> CudaDevice:
    """Looks at eager calls not at all, and at captures call by call."""
    for _ in range(CLOSELY_AT_FIRST):
        assert check(gpu, lambda x: x + 1, FEEDS).verdict is Verdict.EQUIVALENT
    assert not gpu._poisons
    assert not gpu._op_by_op
    return gpu


def test_the_calls_of_the_shipped_op_show_all_that_its_ops_show(settled: CudaDevice) -> None:
    target = get_target("fold_indptr")
    for case in drawn(target.strategy(), USERS_WAY_EVERY + 10, 1):
        assert check(settled, target.implementation, target.feeds(case), target.reference).verdict is Verdict.EQUIVALENT
    assert not settled._poisons
    assert not settled._op_by_op


def test_unwritten_memory_is_met_late(settled: CudaDevice) -> None:
    def unwritten(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
        out[1:] = x
        return out

    for _ in range(3):
        assert check(settled, unwritten, FEEDS).label == "divergence:unwritten_output"
    assert settled._poisons


def test_memory_that_dies_is_met_late(settled: CudaDevice) -> None:
    tables: list[torch.Tensor] = []

    def indexed(x: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            tables[:] = [torch.full((9,), 3, device="cuda")]
        out = tables[0][x]
        if torch.cuda.is_current_stream_capturing():
            tables.clear()
        return out

    outcome = check(settled, indexed, FEEDS)
    assert outcome.verdict is Verdict.DANGLING_BUFFER
    assert outcome.blame.op == "index.Tensor"
    assert outcome.blame.location is not None and outcome.blame.location.text == "out = tables[0][x]"


def test_a_capture_fails_late(settled: CudaDevice) -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + x[0].item()

    for _ in range(3):
        outcome = check(settled, reads, FEEDS)
        assert outcome.label == "capture_error:synchronization"
        assert outcome.blame.op == "_local_scalar_dense"
        assert outcome.blame.location is not None and outcome.blame.location.text == "return x + x[0].item()"
    assert check(settled, lambda x: x + 1, FEEDS).verdict is Verdict.EQUIVALENT


def test_everything_is_read_as_it_is(gpu: CudaDevice) -> None:
    numbers = torch.arange(24, device="cuda")
    waves = torch.complex(torch.arange(4.0), torch.ones(4)).cuda()
    tensors = [
        *(numbers, numbers.view(4, 6).T, numbers[3::5], numbers[:0], numbers[5], numbers.view(2, 3, 4)),
        *(
            numbers % 2 == 0,
            numbers.to(torch.bfloat16),
            numbers.to(torch.float8_e4m3fn),
            numbers.half(),
            numbers.to(torch.uint8),
        ),
        *(waves, waves.conj(), torch.full((3,), float("nan"), device="cuda")),
        *(torch.ones(3, device="cuda", requires_grad=True), torch.nn.Parameter(torch.ones(3, device="cuda")), numbers.cpu()),
        *(numbers.expand(3, 24), torch.zeros(staging.MOST_BYTES // 4 + 1, device="cuda"), torch.ones(300_000, device="cuda")),
    ]
    buffers = [gpu.buffer(Argument(np.arange(7), layout, space)) for layout in LAYOUTS.values() for space in Space]
    arrays = gpu.read_all(tensors, buffers)
    wanted = [*map(host_values, tensors), *(buffer.snapshot() for buffer in buffers)]
    assert len(arrays) == len(wanted)
    for got, want in zip(arrays, wanted, strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes())
        assert got.flags.writeable


def test_what_is_uploaded_stays_as_it_was_when_its_bytes_are_used_again(gpu: CudaDevice) -> None:
    busy = torch.ones(4096, 4096, device="cuda")
    size = staging.FIRST_BYTES // 8 // 3
    for _ in range(4):
        busy @ busy  # the copies wait behind it
        buffers = [gpu.buffer(Argument(np.full(size, number))) for number in range(8)]
        for number, array in enumerate(gpu.read_all([], buffers)):
            assert (array[:size] == number).all()
        for number, buffer in enumerate(buffers):
            buffer.write(np.full(size, number + 100))
        for number, array in enumerate(gpu.read_all([buffer.tensor for buffer in buffers], [])):
            assert (array == number + 100).all()


def test_an_eager_call_finds_its_inputs_on_whatever_stream(gpu: CudaDevice) -> None:
    side = torch.cuda.Stream()
    busy = torch.ones(4096, 4096, device="cuda")
    array = np.arange(20_000)

    def aside(x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(side):
            return x + 1

    for _ in range(5):
        busy @ busy
        buffer = gpu.buffer(Argument(array))
        result = gpu.eager(partial(aside, buffer.tensor), 0)
        assert np.array_equal(gpu.read_all([result], [])[0], array + 1)


def test_the_streams_are_as_they_were(settled: CudaDevice) -> None:
    before = torch.cuda.current_stream()

    def leaves(x: torch.Tensor) -> Any:
        torch.cuda.set_stream(torch.cuda.Stream())
        raise ValueError("on another stream")

    with contextlib.suppress(ValueError):
        settled.capture(lambda: leaves(torch.zeros(1)), 0)
    assert torch.cuda.current_stream() == before
    settled.capture(lambda: torch.zeros(2, device="cuda") + 1, 0).close()
    assert torch.cuda.current_stream() == before


def test_a_graph_of_the_implementations_own_is_not_replayed_through_freed_memory(gpu: CudaDevice) -> None:
    target = get_target("graph_cache")
    cases = drawn(target.strategy(), 40, 1)
    faulty = target.variants["captures_on_a_copy"].function
    labels = {check(gpu, faulty, target.feeds(case)).label for case in cases}
    assert labels <= {"dangling_buffer", "equivalent"}
    assert "dangling_buffer" in labels
    assert {check(gpu, target.implementation, target.feeds(case)).label for case in cases} == {"equivalent"}


def test_a_pinned_number_that_a_graph_copies_must_live(gpu: CudaDevice) -> None:
    x = torch.arange(4, device="cuda")
    for copied in (lambda size: size.to("cuda", non_blocking=True), lambda size: size.cuda(non_blocking=True)):
        size = torch.tensor(4, pin_memory=True)
        graph = gpu.capture(lambda size=size, copied=copied: x + copied(size), 0)
        graph.replay(0)
        assert gpu.read(graph.result).tolist() == [4, 5, 6, 7]
        del size
        with pytest.raises((DanglingBufferError, LookAgainError)):
            graph.replay(0)


def test_memory_that_a_graph_of_the_implementations_own_leaves_unwritten(gpu: CudaDevice) -> None:
    """It is poisoned once: what is written there from outside, no replay undoes."""
    x = torch.arange(4, device="cuda")

    def server() -> tuple[list[int], list[int]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            workspace = torch.empty_like(x)
            out = x + workspace
        graph.replay()
        first = out.tolist()
        workspace.fill_(10)
        graph.replay()
        return first, out.tolist()

    left = poison.value(torch.int64, poison.CAPTURE)
    assert isinstance(left, int)
    assert gpu.eager(server, 0) == ([left, left + 1, left + 2, left + 3], [10, 11, 12, 13])
