"""Triton kernels on the simulated device: run by Triton's interpreter, captured as one node, refused where Triton refuses."""

# mypy: ignore-errors
# ruff: noqa: N803  (a kernel's constants are written large)

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import capfuzz
from capfuzz.conformance.comparison import simulate
from capfuzz.conformance.suite import suite
from capfuzz.devices import Device
from capfuzz.devices.errors import DanglingBufferError, NotModelledError
from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.differential import check, explain

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = pytest.importorskip("triton.language")
PLAIN_RUN = triton.runtime.jit.JITFunction.run
_table: torch.Tensor | None = None
A, B = [1, 4, 0, 5, 2, 3], [3, 1, 4, 1, 6, 0]


@pytest.fixture
def sim() -> Iterator[Any]:
    with capfuzz.sim() as runtime:
        yield runtime


def ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def captured(body: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def indptr_of(lens: list[int]) -> list[int]:
    return [0, *np.cumsum(lens).tolist()]


@triton.jit
def fold_kernel(lens, indptr, n, stride=1, BLOCK: tl.constexpr = 8):
    offsets = tl.arange(0, BLOCK)
    folded = tl.cumsum(tl.load(lens + offsets * stride, mask=offsets < n, other=0), 0)
    tl.store(indptr, 0)
    tl.store(indptr + 1 + offsets, folded, mask=offsets < n)


def fold(lens: torch.Tensor, indptr: torch.Tensor) -> None:
    fold_kernel[(1,)](lens, indptr, lens.numel(), lens.stride(0), BLOCK=triton.next_power_of_2(lens.numel()))


@triton.jit
def add_kernel(x, y, amount, n, BLOCK: tl.constexpr = 4):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) + amount, mask=offsets < n)


@triton.jit
def store_at(x, place, value):
    tl.store(x + place, value)


@triton.jit
def increment(x):
    tl.store(x, tl.load(x) + 1)


# -- capture and replay ------------------------------------------------------------------------------------------------


def test_a_replay_reads_and_writes_the_same_memory(sim: Any) -> None:
    lens, indptr = ints(A), ints([-1] * 7)
    fold(lens, indptr)
    assert indptr.tolist() == indptr_of(A)
    indptr.fill_(-1)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fold(lens, indptr)
        total = indptr[-1] * 2
    assert indptr.tolist() == [-1] * 7, "capture has run nothing"

    for values in (A, B, B, A):
        lens.copy_(torch.tensor(values, dtype=torch.int32))
        graph.replay()
        assert indptr.tolist() == indptr_of(values)
        assert total.item() == 30


def test_a_launch_is_one_node_and_its_line_is_the_users(sim: Any) -> None:
    lens, indptr = ints(A), ints([0] * 7)
    graph = captured(lambda: fold_kernel[(1,)](lens, indptr, 6, BLOCK=8))
    [node] = graph.nodes
    assert (node.op, node.kind) == ("triton.fold_kernel", "kernel")
    assert node.location.text == "graph = captured(lambda: fold_kernel[(1,)](lens, indptr, 6, BLOCK=8))"
    assert node.location.file == __file__
    assert [tensor.data_ptr() for tensor in node.written] == [lens.data_ptr(), indptr.data_ptr()]


def test_the_line_of_an_autotuned_kernel_is_the_users_too(sim: Any) -> None:
    x, y = ints(A), ints([0] * 6)
    tuned_add[(2,)](x, y, 1, 6)
    [node] = captured(lambda: tuned_add[(2,)](x, y, 1, 6)).nodes
    assert node.location.file == __file__


def test_numbers_and_the_grid_are_baked(sim: Any) -> None:
    x, y = ints(A), ints([0] * 6)
    amount, programs, asked = 10, 2, []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        asked.append((meta["n"], meta["BLOCK"]))
        return (programs,)

    graph = captured(lambda: add_kernel[grid](x, y, amount, 6))
    amount, programs = 20, 1
    graph.replay()
    graph.replay()
    assert y.tolist() == [value + 10 for value in A]
    assert asked == [(6, 4)]


def test_ops_after_a_kernel_see_what_it_wrote_while_capturing(sim: Any) -> None:
    """An index that a kernel computes is in range in the capture's own run, or the indexing op would fail there."""
    lens = ints(A)
    table = torch.arange(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        indptr = torch.empty(7, dtype=torch.int32, device="cuda")
        fold(lens, indptr)
        rows = table[indptr.long()]
    graph.replay()
    assert rows.tolist() == indptr_of(A)


def test_kernels_in_one_graph_run_in_order(sim: Any) -> None:
    x = ints([1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        increment[(1,)](x)
        x.mul_(10)
        increment[(3,)](x)
    assert x.item() == 1
    graph.replay()
    assert x.item() == 23


def test_a_strided_view_is_an_address(sim: Any) -> None:
    table = torch.arange(12, dtype=torch.int32, device="cuda").reshape(3, 4)
    y = ints([0] * 4)
    add_kernel[(1,)](table[1, 1:], y, 0, 3)
    assert y.tolist() == [5, 6, 7, 0]


def test_in_place_on_a_view_of_a_larger_buffer(sim: Any) -> None:
    whole = ints(range(10))
    graph = captured(lambda: add_kernel[(1,)](whole[4:], whole[4:], 100, 2))
    assert whole.tolist() == list(range(10))
    graph.replay()
    assert whole.tolist() == [0, 1, 2, 3, 104, 105, 6, 7, 8, 9]


def test_a_buffer_that_was_dropped_is_told(sim: Any) -> None:
    x, y = ints(A), ints([0] * 6)
    graph = captured(partial(add_kernel[(2,)], x, y, 1, 6))
    graph.replay()
    del x
    with pytest.raises(DanglingBufferError, match=r"int32\[6\].*triton\.add_kernel"):
        graph.replay()


def test_a_buffer_under_a_descriptor_or_a_global_is_not_kept_alive(sim: Any) -> None:
    """Neither by the launch, nor by the names that the kernel sees."""
    global _table

    @triton.jit
    def first_row(descriptor, out):
        tl.store(out + tl.arange(0, 8), tl.reshape(descriptor.load([0, 0]), (8,)))

    _table = torch.ones(4, 8, device="cuda")
    out = torch.zeros(8, device="cuda")
    descriptor = triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(_table, [1, 8])
    graph = captured(partial(first_row[(1,)], descriptor, out))
    graph.replay()
    assert out.tolist() == [1] * 8
    _table = descriptor = None
    with pytest.raises(DanglingBufferError, match=r"float32\[4, 8\]"):
        graph.replay()


def test_memory_that_a_kernel_used_is_handed_out_again(sim: Any) -> None:
    x = ints([1])
    addresses = []

    def body() -> torch.Tensor:
        first = x + 1
        addresses.append(first.data_ptr())
        increment[(1,)](first)
        total = first * 10
        del first
        second = x + 5
        addresses.append(second.data_ptr())
        return total + second

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = body()
    assert addresses[0] == addresses[1]
    graph.replay()
    assert result.item() == 36


def test_work_on_a_stream_outside_the_capture_runs_at_once(sim: Any) -> None:
    inside, outside = ints([1]), ints([1])
    elsewhere = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        increment[(1,)](inside)
        with torch.cuda.stream(elsewhere):
            increment[(1,)](outside)
            increment[(1,)](inside)  # on what it really holds
    assert (inside.item(), outside.item(), len(graph.nodes)) == (2, 2, 1)
    graph.replay()
    assert (inside.item(), outside.item()) == (3, 2)


def test_a_forked_stream_must_be_joined(sim: Any) -> None:
    x = ints([1])
    side = torch.cuda.Stream()
    with pytest.raises(RuntimeError, match="unjoined work"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            increment[(1,)](x)


def test_a_kernel_in_a_custom_op(sim: Any) -> None:
    @torch.library.custom_op("capfuzz_tests::triton_add", mutates_args=("y",))
    def add(x: torch.Tensor, y: torch.Tensor, amount: int) -> None:
        add_kernel[(2,)](x, y, amount, x.numel())

    x, y = ints(A), ints([0] * 6)
    for _ in range(3):  # the later ones take the short cut
        add(x, y, 1)
    graph = captured(lambda: add(x, y, 2))
    assert y.tolist() == [value + 1 for value in A]
    graph.replay()
    assert y.tolist() == [value + 2 for value in A]


def test_a_triton_op(sim: Any) -> None:
    @torch.library.triton_op("capfuzz_tests::triton_plus", mutates_args={})
    def plus(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        torch.library.wrap_triton(add_kernel)[(2,)](x, y, 1, x.numel())
        return y

    x = ints(A)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = plus(x)
    x.mul_(2)
    graph.replay()
    assert y.tolist() == [2 * value + 1 for value in A]


def test_a_thread_that_the_program_starts(sim: Any) -> None:
    x = ints([1])
    thread = threading.Thread(target=lambda: increment[(1,)](x))
    thread.start()
    thread.join()
    assert x.item() == 2


def test_kernels_of_several_threads(sim: Any) -> None:
    counters = [ints([0]) for _ in range(4)]
    threads = [threading.Thread(target=lambda x=x: [increment[(1,)](x) for _ in range(10)]) for x in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [x.item() for x in counters] == [10] * 4


# -- memory of the host ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capturing", [False, True])
def test_pageable_memory_is_refused(sim: Any, capturing: bool) -> None:
    x, host = ints(A), torch.zeros(6, dtype=torch.int32)
    guard = torch.cuda.graph(torch.cuda.CUDAGraph()) if capturing else contextlib.nullcontext()
    with pytest.raises(ValueError, match=r"Pointer argument \(at 1\) cannot be accessed from Triton \(cpu tensor\?\)"), guard:
        add_kernel[(2,)](x, host, 1, 6)
    assert host.tolist() == [0] * 6


def test_a_refused_argument_does_not_cost_the_capture(sim: Any) -> None:
    x = ints([1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="cpu tensor"):
            increment[(1,)](torch.zeros(1))
        increment[(1,)](x)
    graph.replay()
    assert x.item() == 2


def test_pinned_memory_is_read_and_written_where_it_is(sim: Any) -> None:
    source = torch.tensor(A, dtype=torch.int32).pin_memory()
    target = torch.zeros(6, dtype=torch.int32).pin_memory()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_kernel[(2,)](source, target, 1, 6)
        seen = target.tolist()
    assert seen == target.tolist() == [0] * 6, "capture has run nothing, and the host may look"
    source.copy_(torch.tensor(B, dtype=torch.int32))
    graph.replay()
    assert target.tolist() == [value + 1 for value in B]


def test_empty_tensors_and_none_are_null_pointers(sim: Any) -> None:
    y = ints([0])

    @triton.jit
    def maybe(x, nothing, y):
        if nothing is None:
            tl.store(y, 1)

    maybe[(1,)](torch.empty(0), None, y)
    assert y.item() == 1


def test_an_address_beyond_every_tensor_is_refused_not_followed(sim: Any) -> None:
    x = ints(A)
    with pytest.raises(RuntimeError, match=r"illegal memory access.*store_at writes 4 bytes at 0x"):
        store_at[(1,)](x, 1 << 24, 7)
    graph = captured(lambda: store_at[(1,)](x, 1 << 24, 7))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graph.replay()
    assert x.tolist() == A


def test_a_masked_lane_may_point_anywhere(sim: Any) -> None:
    x, y = ints(A), ints([0] * 6)
    add_kernel[(1,)](x, y, 1, 2, BLOCK=1024)
    assert y.tolist() == [2, 5, 0, 0, 0, 0]


def test_a_table_of_addresses_leads_to_other_tensors(sim: Any) -> None:
    """As a KV cache keeps one buffer a layer."""

    @triton.jit
    def fill_layers(addresses, value):
        tl.store(tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int32)) + 1, value)

    layers = [ints([0, 0]) for _ in range(3)]
    addresses = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.int64, device="cuda")
    graph = captured(lambda: fill_layers[(3,)](addresses, 5))
    assert [layer.tolist() for layer in layers] == [[0, 0]] * 3
    graph.replay()
    assert [layer.tolist() for layer in layers] == [[0, 5]] * 3


# -- what a launch may look like ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "launch",
    [
        lambda x, y: add_kernel[(2,)](x, y, 1, 6),
        lambda x, y: add_kernel[(2, 1, 1)](x, y, 1, 6, 4),
        lambda x, y: add_kernel[[2]](x, y, 1, 6),
        lambda x, y: add_kernel[(np.int64(2),)](x, y, 1, 6),
        lambda x, y: add_kernel[(2,)](x=x, y=y, amount=1, n=6, BLOCK=4),
        lambda x, y: add_kernel[(2,)](y=y, n=6, x=x, amount=1),
        lambda x, y: add_kernel[(1,)](x, y, 1, 6, BLOCK=tl.constexpr(8)),
        lambda x, y: add_kernel[(1,)](x, y, 1, 6, BLOCK=8, num_warps=2, num_stages=3),
        lambda x, y: add_kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, y, 1, 6),
        lambda x, y: add_kernel[lambda meta: (meta["x"].numel(),)](x, y, 1, 6),
        lambda x, y: add_kernel.run(x, y, 1, 6, grid=(2,), warmup=False),
        lambda x, y: add_kernel.run(x, y, 1, 6, 8, grid=lambda meta: (1,), warmup=False, num_warps=1),
        lambda x, y: add_kernel.warmup(torch.int32, torch.int32, 1, 6, 8, grid=(1,))[(1, 1, 1)](x, y, 1, 6, 8),
        lambda x, y: add_kernel[(2,)](x, y, 1, 6)[(2, 1, 1)](x, y, 1, 6, 4),
    ],
)
def test_ways_to_launch(sim: Any, launch: Any) -> None:
    x, y = ints(A), ints([0] * 6)
    launch(x, y)
    assert y.tolist() == [value + 1 for value in A]
    y.zero_()
    graph = captured(lambda: launch(x, y))
    graph.replay()
    assert y.tolist() == [value + 1 for value in A]


@pytest.mark.parametrize("grid", [(0,), (2, 0), (1, 1, 0), (-1,)])
def test_a_grid_of_no_program_launches_nothing(sim: Any, grid: tuple[int, ...]) -> None:
    x = ints([1])
    increment[grid](x)
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        graph = captured(lambda: increment[grid](x))
    graph.replay()
    assert (x.item(), graph.nodes) == (1, [])


def test_warmup_launches_nothing(sim: Any) -> None:
    x = ints([1])
    compiled = increment.warmup(x, grid=(1,))
    assert x.item() == 1
    with pytest.raises(NotModelledError, match="n_regs"):
        compiled.n_regs  # noqa: B018
    assert not hasattr(compiled, "anything_else")


@pytest.mark.parametrize(
    ("launch", "error", "text"),
    [
        (lambda x: increment[1](x), TypeError, "object of type 'int' has no len"),
        (lambda x: increment[(1.0,)](x), TypeError, "cannot be interpreted as an integer"),
        (lambda x: increment[(1, 70_000)](x), RuntimeError, r"Triton Error \[CUDA\]: invalid argument"),
        (lambda x: increment[(-1, -1)](x), RuntimeError, r"Triton Error \[CUDA\]: invalid argument"),
        (lambda x: increment[(1,)](), TypeError, "missing 1 required positional argument: 'x'"),
        (lambda x: increment[(1,)](x, x), TypeError, "takes 1 positional argument but 2 were given"),
        (lambda x: increment[(1,)](x, waves=1), KeyError, "waves was specified but unrecognised"),
        (lambda x: increment[(1,)](x, num_warps=3), AssertionError, "num_warps must be a power of 2"),
        (lambda x: store_at[(1,)](x, np.int32(0), 1), TypeError, "failed to specialize argument of type: .*int32"),
        (lambda x: store_at[(1,)](x, "0", 1), TypeError, "failed to specialize argument of type: str"),
        (lambda x: increment(x), RuntimeError, "outside of the scope of a kernel"),
    ],
)
def test_what_triton_refuses_is_refused_in_its_words(sim: Any, launch: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        launch(ints([1]))


def test_a_grid_read_from_the_device_waits_for_it(sim: Any) -> None:
    x, n = ints([1]), ints(2)
    increment[(n,)](x)
    assert x.item() == 3
    for grid in [lambda: (n.item(),), lambda: (n,), lambda: lambda meta: (meta["x"].item(),)]:
        with pytest.raises(RuntimeError) as caught, torch.cuda.graph(torch.cuda.CUDAGraph()):
            increment[grid()](x)
        assert "operation not permitted when stream is capturing" in str(caught.value.__context__)


def test_a_launch_into_a_capture_that_has_failed(sim: Any) -> None:
    x = ints([1])
    with pytest.raises(RuntimeError, match="previous error during capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(RuntimeError, match="not permitted"):
            x.item()
        increment[(1,)](x)


def test_hooks_run_before_the_launch(sim: Any) -> None:
    @triton.jit
    def hooked(x):
        tl.store(x, tl.load(x) + 1)

    hooked.add_pre_run_hook(lambda x, **kwargs: x.zero_())
    x = ints([5])
    graph = captured(lambda: hooked[(1,)](x))
    assert x.item() == 5
    graph.replay()
    assert x.item() == 1
    assert [node.op for node in graph.nodes] == ["zero_", "triton.hooked"]


# -- arguments ---------------------------------------------------------------------------------------------------------


@triton.jit
def store_scalars(integer, large, real, flag, out):
    tl.store(out, integer.to(tl.float64))
    tl.store(out + 1, (large * 2).to(tl.float64))
    tl.store(out + 2, real.to(tl.float64) / 2)
    if flag:
        tl.store(out + 3, 1.0)


def test_scalars(sim: Any) -> None:
    out = torch.zeros(4, dtype=torch.float64, device="cuda")
    store_scalars[(1,)](7, 1 << 40, 2.5, True, out)
    assert out.tolist() == [7, float(2 << 40), 1.25, 1]
    out.zero_()
    store_scalars[(1,)](-1, (1 << 63) - 1, 1, False, out)
    assert out.tolist() == [-1, -2.0, 0.5, 0]


def test_annotated_scalars_have_their_type(sim: Any) -> None:
    @triton.jit
    def square(n: tl.int64, half: tl.float16, out):
        tl.store(out, n * n + half.to(tl.int64))

    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    square[(1,)](100_000, 3.0, out)
    assert out.item() == 10_000_000_003


def test_tuples_and_descriptors(sim: Any) -> None:
    @triton.jit
    def of_tuple(pair, out):
        a, b, n = pair
        tl.store(out, tl.load(a) + tl.load(b) + n)

    @triton.jit
    def of_descriptor(descriptor, out):
        rows, columns = tl.arange(0, 4), tl.arange(0, 8)
        tl.store(out + rows[:, None] * 8 + columns[None, :], descriptor.load([0, 0]) * 2)

    x, out = ints(A), ints([0])
    graph = captured(lambda: of_tuple[(1,)]((x, x[3:], 10), out))
    x[0] = 7
    graph.replay()
    assert out.item() == 22
    with pytest.raises(ValueError, match="at 1"):
        of_tuple[(1,)]((x, torch.ones(1), 10), out)

    table = torch.arange(32, dtype=torch.float32, device="cuda").reshape(4, 8)
    doubled = torch.zeros_like(table)
    descriptor = triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(table, [4, 8])
    graph = captured(lambda: of_descriptor[(1,)](descriptor, doubled))
    assert not doubled.any()
    table.add_(1)
    graph.replay()
    assert torch.equal(doubled, table * 2)


def test_reinterpreted_tensors(sim: Any) -> None:
    x = torch.tensor([1.0], device="cuda")
    out = ints([0])
    add_kernel[(1,)](triton.reinterpret(x, tl.int32), out, 0, 1)
    assert out.item() == 0x3F800000


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int16", "int64", "float16", "bfloat16"])
def test_dtypes(sim: Any, name: str) -> None:
    @triton.jit
    def move(x, y, N: tl.constexpr):
        offsets = tl.arange(0, N)
        tl.store(y + offsets, tl.load(x + offsets))

    x = torch.tensor([0, 1, 1, 0], device="cuda").to(getattr(torch, name))
    y = torch.zeros_like(x)
    move[(1,)](x, y, 4)
    assert torch.equal(x, y)


# -- kernels -----------------------------------------------------------------------------------------------------------

SHIFT: tl.constexpr = tl.constexpr(3)


@triton.jit
def shifted(value, by):
    return value + by + SHIFT


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def language_kernel(x, out, n, N: tl.constexpr):
    offsets = tl.arange(0, N)
    values = tl.load(x + offsets)
    total = values.sum(0) + tl.reduce(values, 0, larger) + tl.max(values, 0)
    running = tl.associative_scan(values, 0, larger)
    zeros = tl.zeros((N,), dtype=tl.int32) + tl.cdiv(n, 4)
    for i in range(n):
        zeros += i
    for _ in tl.static_range(2):
        zeros = shifted(zeros, by=1)
    steps = 0
    while steps < total:
        steps += 5
    tl.static_assert(N >= 8)
    tl.debug_barrier()
    ordered = tl.sort(values) + tl.flip(values, 0)
    tl.store(out + offsets, tl.where(values > 2, running + zeros, ordered) + steps)


def test_the_language(sim: Any) -> None:
    x = ints([3, 1, 4, 1, 5, 2, 6, 7])
    out = torch.zeros_like(x)
    language_kernel[(1,)](x, out, 3, N=8)
    values = np.array([3, 1, 4, 1, 5, 2, 6, 7])
    zeros, total = 1 + 3 + 8, 29 + 7 + 7
    ordered = np.sort(values) + values[::-1]
    expected = np.where(values > 2, np.maximum.accumulate(values) + zeros, ordered) + -(-total // 5) * 5
    assert out.tolist() == expected.tolist()


def test_dot_and_atomics(sim: Any) -> None:
    @triton.jit
    def multiply(a, b, c, counter, N: tl.constexpr):
        i = tl.arange(0, N)
        at = i[:, None] * N + i[None, :]
        tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))
        tl.atomic_add(counter + i, 1)
        tl.atomic_max(counter + N, tl.program_id(0))
        tl.atomic_cas(counter + N + 1, 0, 9)

    a, b = torch.randn(2, 16, 16, dtype=torch.float16, device="cuda")
    c, counter = torch.zeros(16, 16, device="cuda"), ints([0] * 18)
    graph = captured(lambda: multiply[(3,)](a, b, c, counter, 16))
    assert not counter.any()
    graph.replay()
    graph.replay()
    assert counter.tolist() == [6] * 16 + [2, 9]
    torch.testing.assert_close(c, a.float() @ b.float())


def test_a_condition_of_one_value_in_a_mask(sim: Any) -> None:
    @triton.jit
    def rows_below(out, count, N: tl.constexpr):
        row = tl.program_id(0)
        columns = tl.arange(0, N)
        real = row < tl.load(count)
        tl.store(out + row * N + columns, row + 1, mask=(columns < N - 1) & real)
        tl.store(out + row * N + columns, -1, mask=(columns == N - 1) & (not real))

    out = torch.zeros(3, 4, dtype=torch.int32, device="cuda")
    rows_below[(3,)](out, ints(2), 4)
    assert out.tolist() == [[1, 1, 1, 0], [2, 2, 2, 0], [0, 0, 0, -1]]


def kernel_of(width: int) -> Any:
    @triton.jit
    def nested(out, N: tl.constexpr = width):
        tl.store(out, later(width + N))

    return nested


def test_a_nested_kernel_sees_what_encloses_it(sim: Any) -> None:
    out = ints([0])
    kernel_of(7)[(1,)](out)
    assert out.item() == 15


@triton.jit
def later(value):
    return value + 1


def test_a_module_is_left_as_it_was(sim: Any) -> None:
    before = set(globals())
    fold(ints(A), ints([0] * 7))
    assert set(globals()) == before
    assert "interpreter_semantic" not in globals()


def test_a_kernel_that_fails_names_itself_and_the_launch_line(sim: Any) -> None:
    @triton.jit
    def wrong(x):
        tl.store(x, tl.arange(0, 4) + tl.arange(0, 8))

    x = ints(A)
    for launch in (lambda: wrong[(1,)](x), lambda: captured(lambda: wrong[(1,)](x))):
        with pytest.raises(Exception, match=r"wrong: .*incompatible") as caught:
            launch()
        assert capfuzz.devices.trace.blamed(caught.value).text.startswith("for launch in (lambda: wrong[(1,)](x)")


def test_device_asserts_are_checked_in_debug_mode_only(sim: Any) -> None:
    @triton.jit
    def asserting(x):
        tl.device_assert(tl.load(x) == 1, "one")

    asserting[(1,)](ints([1]), debug=True)
    asserting[(1,)](ints([2]))
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        asserting[(1,)](ints([2]), debug=True)


def test_a_gluon_kernel_is_not_modelled(sim: Any) -> None:
    gluon = pytest.importorskip("triton.experimental.gluon")

    @gluon.jit
    def nothing(x):
        pass

    with pytest.raises(NotModelledError, match="nothing is a Gluon kernel"):
        nothing[(1,)](ints([1]))


# -- autotuning and heuristics -----------------------------------------------------------------------------------------


@triton.autotune(configs=[triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8}, num_warps=2)], key=["n"])
@triton.jit
def tuned_add(x, y, amount, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n) + amount, mask=offsets < n)


def test_autotuning_takes_the_first_configuration(sim: Any) -> None:
    x, y = ints(A), ints([0] * 6)
    seen = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        seen.append(meta["BLOCK"])
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    tuned_add[grid](x, y, 1, 6)
    assert (y.tolist(), seen) == ([value + 1 for value in A], [4])
    graph = captured(lambda: tuned_add[grid](x, y, 2, 6))
    graph.replay()
    assert (y.tolist(), seen) == ([value + 2 for value in A], [4, 4])
    assert tuned_add.best_config.kwargs == {"BLOCK": 4}
    assert tuned_add.cache == {}, "nothing of it outlives the context"


def test_autotuning_for_a_new_key_waits_for_the_device(sim: Any) -> None:
    x, y = ints(A), ints([0] * 6)
    tuned_add[(2,)](x, y, 1, 6)
    with pytest.raises(RuntimeError) as caught, torch.cuda.graph(torch.cuda.CUDAGraph()):
        tuned_add[(2,)](x, y, 1, 5)
    assert "operation not permitted when stream is capturing" in str(caught.value.__context__)


def test_one_configuration_is_not_measured(sim: Any) -> None:
    @triton.autotune(configs=[triton.Config({"BY": 4}, pre_hook=lambda args: args["x"].zero_())], key=["x"])
    @triton.jit
    def single(x, BY: tl.constexpr):
        tl.store(x, tl.load(x) + BY)

    x = ints([5])
    graph = captured(lambda: single[(1,)](x))
    graph.replay()
    assert x.item() == 4


def test_a_configuration_that_is_not_legal_is_passed_over(sim: Any) -> None:
    @triton.autotune(configs=[triton.Config({"N": n}) for n in (1, 2, 4)], key=[], reset_to_zero=["x"])
    @triton.jit
    def picky(x, LEAST: tl.constexpr, N: tl.constexpr):
        tl.static_assert(N >= LEAST, "too small")
        tl.store(x, tl.load(x) + N)

    x = ints([10])
    picky[(1,)](x, 2)
    assert x.item() == 2
    picky[(1,)](x, 2)
    assert x.item() == 4, "zeroed for the measuring alone"


def test_a_static_assertion_that_fails(sim: Any) -> None:
    @triton.jit
    def asserting(x, N: tl.constexpr):
        tl.static_assert(N == 1, "one")

    asserting[(1,)](ints([1]), 1)
    with pytest.raises(triton.compiler.errors.CompileTimeAssertionFailure, match="one"):
        asserting[(1,)](ints([1]), 2)


def test_pruning(sim: Any) -> None:
    @triton.autotune(
        configs=[triton.Config({"N": n}) for n in (1, 2, 4)],
        key=[],
        prune_configs_by={"early_config_prune": lambda configs, named, **kwargs: [c for c in configs if c.kwargs["N"] > 1]},
    )
    @triton.jit
    def pruned(x, N: tl.constexpr):
        tl.store(x, N)

    x = ints([0])
    pruned[(1,)](x)
    assert x.item() == 2
    assert len(pruned.warmup(x, grid=(1,))) == 2


def test_heuristics(sim: Any) -> None:
    @triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0, "N": lambda args: triton.next_power_of_2(args["n"])})
    @triton.jit
    def heuristic(x, n, EVEN: tl.constexpr, N: tl.constexpr):
        offsets = tl.arange(0, N)
        tl.store(x + offsets, N if EVEN else -N, mask=offsets < n)

    x = ints([0] * 6)
    graph = captured(lambda: heuristic[(1,)](x, 6))
    graph.replay()
    assert x.tolist() == [8] * 6
    heuristic[(1,)](x, 3)
    assert x.tolist() == [-4] * 3 + [8] * 3


# -- the check ---------------------------------------------------------------------------------------------------------


def steps() -> list[dict[str, Argument]]:
    return [{"lens": Argument(np.array(values, np.int32))} for values in (A, B)]


def right_body(lens: torch.Tensor) -> torch.Tensor:
    indptr = torch.empty(lens.numel() + 1, dtype=torch.int32, device="cuda")
    fold(lens, indptr)
    return indptr


def stale_body(lens: torch.Tensor, lens_cpu: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(lens)
    store_at[(1,)](y, 0, lens_cpu[0].item())
    return y


def unwritten_body(lens: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(lens)
    add_kernel[(1,)](lens, y, 1, lens.numel())
    return y


def test_the_check_finds_a_kernel_equivalent_in_every_layout(device: Device) -> None:
    for layout in LAYOUTS.values():
        given = [{"lens": Argument(np.array(values, np.int32), layout)} for values in (A, B)]
        assert check(device, right_body, given, None).label == "equivalent"


def test_the_check_blames_the_launch_line(device: Device) -> None:
    given = [
        {**step, "lens_cpu": Argument(np.array(values, np.int32), space=Space.HOST)}
        for step, values in zip(steps(), (A, B), strict=True)
    ]
    outcome = explain(device, stale_body, given, None, check(device, stale_body, given, None))
    assert outcome.label == "divergence:stale_host_value"
    assert outcome.blame.op == "triton.store_at"
    assert outcome.blame.location.text == "store_at[(1,)](y, 0, lens_cpu[0].item())"


def test_the_check_sees_what_a_kernel_leaves_unwritten(device: Device) -> None:
    assert check(device, unwritten_body, steps(), None).label == "divergence:unwritten_output"


VERDICTS = {
    "tri_grid_from_item": "capture_error:synchronization",
    "tri_grid_from_tensor": "capture_error:synchronization",
    "tri_grid_function_reads": "capture_error:synchronization",
    "tri_scalar_from_item": "capture_error:synchronization",
    "tri_side_stream_unjoined": "capture_error:unjoined_stream",
    "tri_scalar_from_numpy": "diverges:stale",
    "tri_scalar_from_host_tensor": "diverges:stale",
    "tri_bound_from_numpy": "diverges:stale",
    "tri_constexpr_from_numpy": "diverges:stale",
    "tri_grid_from_numpy": "diverges:stale",
    "tri_reads_pageable": "eager_error",
    "tri_scalar_is_host_tensor": "eager_error",
    "tri_grid_is_int": "eager_error",
    "tri_first_tuning_in_capture": "raised",
    "tri_input_freed_and_reused": "raised",
}
IDIOMS = {name: idiom for name, idiom in suite().items() if idiom.family == "triton_kernels"}


@pytest.mark.parametrize("name", IDIOMS)
def test_idioms(name: str) -> None:
    usual = "observed" if IDIOMS[name].is_program else "equivalent"
    assert simulate(IDIOMS[name]).verdict == VERDICTS.get(name, usual)


# -- putting back ------------------------------------------------------------------------------------------------------


def test_everything_is_put_back() -> None:
    language = {name: dict(vars(owner)) for name, owner in (("tl", tl), ("tensor", tl.tensor), ("math", tl.math))}
    run, call = triton.runtime.jit.JITFunction.run, triton.runtime.jit.JITFunction.__call__
    tune, active = triton.runtime.autotuner.Autotuner.run, type(triton.runtime.driver).active
    with capfuzz.sim():
        assert triton.runtime.driver.active.get_current_target().arch == 90
        assert triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"] == 132
        assert triton.runtime.driver.active.get_active_torch_device() == torch.device("cuda", 0)
        language_kernel[(1,)](ints(range(8)), ints(range(8)), 3, N=8)
        with pytest.raises(triton.runtime.errors.InterpreterError):
            language_kernel[(1,)](ints(range(8)), ints(range(8)), 1.5, N=8)
    assert triton.runtime.jit.JITFunction.run is run is PLAIN_RUN
    assert triton.runtime.jit.JITFunction.__call__ is call
    assert triton.runtime.autotuner.Autotuner.run is tune
    assert type(triton.runtime.driver).active is active
    for name, owner in (("tl", tl), ("tensor", tl.tensor), ("math", tl.math)):
        assert dict(vars(owner)) == language[name]


def test_another_thread_has_the_real_triton() -> None:
    """Which has no GPU here, and says so."""
    raised: list[BaseException] = []

    def launch() -> None:
        try:
            triton.runtime.driver.active  # noqa: B018
        except RuntimeError as error:
            raised.append(error)

    started, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (started.set(), go.wait(), launch()))
    thread.start()
    started.wait()
    with capfuzz.sim():
        go.set()
        thread.join()
    assert torch.version.cuda is not None or "0 active drivers" in str(raised[0])


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_triton_imported_inside_the_context(tmp_path: Any) -> None:
    (tmp_path / "late.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\ndef set_one(x):\n    tl.store(x, 1)\n"
    )
    code = (
        f"import sys, torch, capfuzz\nsys.path.insert(0, {str(tmp_path)!r})\nassert 'triton' not in sys.modules\n"
        "with capfuzz.sim():\n    import late\n    x = torch.zeros(1, device='cuda')\n    late.set_one[(1,)](x)\n"
        "    print(x.item())\n"
    )
    assert run_python(code) == "1.0"


def test_kernels_decorated_for_the_interpreter(tmp_path: Any) -> None:
    """`TRITON_INTERPRET=1` makes other objects of kernels; on the device they are the same."""
    (tmp_path / "early.py").write_text(
        "import triton\nimport triton.language as tl\n@triton.jit\ndef one_more(v):\n    return v + 1\n@triton.jit\n"
        "def total(x, y, N: tl.constexpr):\n    tl.store(y, one_more(tl.load(x + tl.arange(0, N)).sum(0)))\n"
    )
    code = (
        f"import sys, torch, capfuzz\nsys.path.insert(0, {str(tmp_path)!r})\nimport early\nwith capfuzz.sim():\n"
        "    x, y = torch.ones(4, device='cuda'), torch.zeros(1, device='cuda')\n    g = torch.cuda.CUDAGraph()\n"
        "    with torch.cuda.graph(g):\n        early.total[(1,)](x, y, 4)\n    x.fill_(2)\n    g.replay()\n"
        "    print(type(early.total).__name__, y.item(), len(g.nodes))\n"
    )
    assert run_python(code, TRITON_INTERPRET="1") == "InterpretedFunction 9.0 1"


def test_a_broken_installation_changes_nothing(tmp_path: Any) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise OSError('no such library')\n")
    code = (
        "import torch, capfuzz\nwith capfuzz.sim():\n    print(torch.ones(2, device='cuda').sum().item())\n"
        "    try:\n        import triton\n    except OSError as error:\n        print(error)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert run_python(code, PYTHONPATH=path) == "2.0\nno such library"


def test_without_triton_there_is_nothing_of_it() -> None:
    code = (
        "import sys, torch, capfuzz\nsys.modules['triton'] = None\nfrom capfuzz.conformance.suite import suite\n"
        "with capfuzz.sim():\n    print(torch.ones(2, device='cuda').sum().item())\n"
        "print([name for name in suite() if name.startswith('tri_')], [m for m in sys.modules if m.startswith('triton')])\n"
    )
    assert run_python(code) == "2.0\n[] ['triton']"
