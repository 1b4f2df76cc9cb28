"""Triton kernels as serving code writes them. Where Triton is not installed there are none."""

# mypy: ignore-errors
# ruff: noqa: N803  (a kernel's constants are written large)

from __future__ import annotations

from typing import Any

import torch

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom, program

try:
    import triton
    import triton.language as tl
except Exception:  # not there, or it does not work here
    triton = None

if triton is not None:
    # Kernels

    @triton.jit
    def fold_kernel(lens, indptr, n, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        folded = tl.cumsum(tl.load(lens + offsets, mask=offsets < n, other=0), 0)
        tl.store(indptr + offsets * 0, tl.zeros((BLOCK,), tl.int32), mask=offsets == 0)
        tl.store(indptr + 1 + offsets, folded, mask=offsets < n)

    @triton.jit
    def add_kernel(x, y, amount, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(y + offsets, tl.load(x + offsets, mask=mask) + amount, mask=mask)

    @triton.jit
    def slot_kernel(positions, block_table, slots, mask, n, PAGE: tl.constexpr, BLOCK: tl.constexpr):
        """Slot of each token in a paged cache; -1 for a row that is padding."""
        offsets = tl.arange(0, BLOCK)
        inside = offsets < n
        position = tl.load(positions + offsets, mask=inside, other=0)
        page = tl.load(block_table + position // PAGE, mask=inside, other=0)
        real = tl.load(mask + offsets, mask=inside, other=0) != 0
        slot = page.to(tl.int64) * PAGE + position % PAGE
        tl.store(slots + offsets, tl.where(real, slot, -1), mask=inside)

    @triton.jit
    def kv_indices_kernel(table, rows, lens, indptr, out, stride, BLOCK: tl.constexpr):
        """One program a request copies the request's row of the page table; how long it loops it reads on the device."""
        request = tl.program_id(0)
        row = tl.load(rows + request)
        start = tl.load(indptr + request)
        length = tl.load(lens + request)
        for block in range(tl.cdiv(length, BLOCK)):
            offsets = block * BLOCK + tl.arange(0, BLOCK)
            entries = tl.load(table + row * stride + offsets, mask=offsets < length)
            tl.store(out + start + offsets, entries, mask=offsets < length)

    @triton.jit
    def block_totals_kernel(x, totals, n, BLOCK: tl.constexpr):
        block = tl.program_id(0)
        offsets = block * BLOCK + tl.arange(0, BLOCK)
        tl.store(totals + block, tl.sum(tl.load(x + offsets, mask=offsets < n, other=0), 0))

    @triton.jit
    def block_scan_kernel(x, totals, y, n, BLOCK: tl.constexpr):
        block = tl.program_id(0)
        before = 0
        for earlier in range(block):
            before += tl.load(totals + earlier)
        offsets = block * BLOCK + tl.arange(0, BLOCK)
        scanned = tl.cumsum(tl.load(x + offsets, mask=offsets < n, other=0), 0)
        tl.store(y + offsets, scanned + before, mask=offsets < n)

    @triton.jit
    def count_kernel(keys, counters, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.atomic_add(counters + tl.load(keys + offsets, mask=mask, other=0), 1, mask=mask)

    @triton.jit
    def pad_rows_kernel(f, out, count, width, BLOCK: tl.constexpr):
        """Rows from `count` on, which is read on the device, are zero."""
        row = tl.program_id(0)
        columns = tl.arange(0, BLOCK)
        real = row < tl.load(count)
        values = tl.load(f + row * width + columns, mask=(columns < width) & real, other=0.0)
        tl.store(out + row * width + columns, values, mask=columns < width)

    @triton.jit
    def mark_kernel(out):
        tl.store(out + tl.program_id(0), 1)

    @triton.jit
    def column_kernel(f, out, stride_row, stride_column, column, ROWS: tl.constexpr, N: tl.constexpr):
        rows = tl.arange(0, N)
        values = tl.load(f + rows * stride_row + column * stride_column, mask=rows < ROWS, other=0.0)
        tl.store(out + rows, values, mask=rows < ROWS)

    @triton.jit
    def clamped(value, LIMIT: tl.constexpr):
        return tl.minimum(value, LIMIT)

    @triton.jit
    def clamp_kernel(x, y, n, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(y + offsets, clamped(tl.load(x + offsets, mask=offsets < n), LIMIT), mask=offsets < n)

    @triton.jit
    def fill_tables_kernel(addresses, value, N: tl.constexpr):
        """Writes through a table of addresses, as a cache of one buffer a layer is written."""
        layer = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int32))
        tl.store(layer + tl.arange(0, N), tl.load(value))

    @triton.jit
    def random_kernel(out, seed, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        tl.store(out + offsets, tl.rand(seed, offsets))

    @triton.autotune(configs=[triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8}, num_warps=2)], key=["n"])
    @triton.jit
    def tuned_kernel(x, y, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(y + offsets, tl.load(x + offsets, mask=mask) * 3, mask=mask)

    @triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"]), "EVEN": lambda args: args["n"] % 2 == 0})
    @triton.jit
    def heuristic_kernel(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        values = tl.load(x + offsets, mask=offsets < n)
        if EVEN:
            values = values * 2
        tl.store(y + offsets, values, mask=offsets < n)

    # Metadata, as an attention backend prepares it

    @idiom
    def tri_fold_into_static(s: Buffers) -> list[torch.Tensor]:
        fold_kernel[(1,)](s.lens, s.out, 6, BLOCK=8)
        return [s.out[:7]]

    @idiom
    def tri_fold_into_empty(s: Buffers) -> list[torch.Tensor]:
        indptr = torch.empty(7, dtype=torch.int32, device=s.dev)
        fold_kernel[(1,)](s.lens, indptr, s.lens.numel(), BLOCK=triton.next_power_of_2(s.lens.numel()))
        return [indptr, indptr[-1] + 1]

    @idiom
    def tri_fold_then_index(s: Buffers) -> list[torch.Tensor]:
        """An op takes indices from memory that the kernel has written."""
        indptr = torch.empty(7, dtype=torch.int32, device=s.dev)
        fold_kernel[(1,)](s.lens, indptr, 6, BLOCK=8)
        return [s.out[indptr.long()]]

    @idiom
    def tri_slot_mapping(s: Buffers) -> list[torch.Tensor]:
        slots = torch.empty(6, dtype=torch.int64, device=s.dev)
        slot_kernel[(1,)](s.x, s.idx, slots, s.mask, 6, PAGE=4, BLOCK=8)
        return [slots]

    @idiom
    def tri_kv_indices(s: Buffers) -> list[torch.Tensor]:
        table = torch.arange(48, dtype=torch.int32, device=s.dev).reshape(6, 8)
        kv_indices_kernel[(6,)](table, s.idx, s.lens, s.indptr, s.out, table.stride(0), BLOCK=4)
        return [s.out]

    @idiom
    def tri_scan_in_blocks(s: Buffers) -> list[torch.Tensor]:
        """Two kernels; the second loops over what the first left."""
        totals = torch.empty(3, dtype=torch.int32, device=s.dev)
        y = torch.empty_like(s.x)
        block_totals_kernel[(3,)](s.x, totals, 6, BLOCK=2)
        block_scan_kernel[(3,)](s.x, totals, y, 6, BLOCK=2)
        return [y]

    @idiom
    def tri_counters(s: Buffers) -> list[torch.Tensor]:
        counters = torch.zeros(9, dtype=torch.int32, device=s.dev)
        count_kernel[(2,)](s.lens, counters, 6, BLOCK=4)
        return [counters]

    @idiom
    def tri_counters_kept_in_static(s: Buffers) -> list[torch.Tensor]:
        """Not zeroed: each run adds to what is there."""
        count_kernel[(2,)](s.lens, s.out, 6, BLOCK=4)
        return [s.out]

    @idiom
    def tri_padding_rows(s: Buffers) -> list[torch.Tensor]:
        out = torch.empty_like(s.f)
        pad_rows_kernel[(6,)](s.f, out, s.n, 8, BLOCK=8)
        return [out]

    @idiom
    def tri_in_place(s: Buffers) -> list[torch.Tensor]:
        add_kernel[(2,)](s.x, s.x, 1, 6, BLOCK=4)
        return [s.x]

    @idiom
    def tri_strided_view(s: Buffers) -> list[torch.Tensor]:
        out = torch.empty(6, device=s.dev)
        view = s.f.t()
        column_kernel[(1,)](view, out, view.stride(1), view.stride(0), 3, ROWS=6, N=8)
        return [out]

    @idiom
    def tri_slice_of_static(s: Buffers) -> list[torch.Tensor]:
        add_kernel[(1,)](s.x[2:], s.out[10:], 5, 4, BLOCK=4)
        return [s.out]

    @idiom
    def tri_helper(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        clamp_kernel[(1,)](s.x, y, 6, LIMIT=4, BLOCK=8)
        return [y]

    @idiom
    def tri_between_ops(s: Buffers) -> list[torch.Tensor]:
        y = s.x * 2
        add_kernel[(2,)](y, y, 1, 6, BLOCK=4)
        y.mul_(3)
        return [y, y.sum()]

    @idiom
    def tri_random_of_fixed_seed(s: Buffers) -> list[torch.Tensor]:
        """Triton's generator is a function of its seed: no state of PyTorch's is drawn from."""
        out = torch.empty(8, device=s.dev)
        random_kernel[(1,)](out, 42, BLOCK=8)
        return [out]

    # Numbers of the host: baked

    @idiom
    def tri_scalar_from_numpy(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel[(2,)](s.x, y, int(s.lens_np[3]), 6, BLOCK=4)
        return [y]

    @idiom
    def tri_scalar_from_host_tensor(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel[(2,)](s.x, y, s.lens_cpu[3].item(), 6, BLOCK=4)
        return [y]

    @idiom
    def tri_bound_from_numpy(s: Buffers) -> list[torch.Tensor]:
        """How many are written is a number of the host."""
        y = torch.zeros_like(s.x)
        add_kernel[(2,)](s.x, y, 1, int(s.lens_np[3]), BLOCK=4)
        return [y]

    @idiom
    def tri_constexpr_from_numpy(s: Buffers) -> list[torch.Tensor]:
        """A kernel of its own for each value."""
        y = torch.empty_like(s.x)
        clamp_kernel[(1,)](s.x, y, 6, LIMIT=int(s.lens_np[3]), BLOCK=8)
        return [y]

    @idiom
    def tri_grid_from_numpy(s: Buffers) -> list[torch.Tensor]:
        y = torch.zeros(8, dtype=torch.int32, device=s.dev)
        mark_kernel[(int(s.lens_np[3]),)](y)
        return [y]

    @idiom
    def tri_grid_of_largest_batch(s: Buffers) -> list[torch.Tensor]:
        """What to do instead: a fixed grid, and the number of rows read on the device."""
        out = torch.empty_like(s.f)
        pad_rows_kernel[(s.f.shape[0],)](s.f, out, s.n, s.f.stride(0), BLOCK=triton.next_power_of_2(s.f.shape[1]))
        return [out]

    @idiom
    def tri_grid_function(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](s.x, y, 1, 6, BLOCK=4, num_warps=2)
        return [y]

    @idiom
    def tri_grid_of_nothing(s: Buffers) -> list[torch.Tensor]:
        y = s.x + 1
        mark_kernel[(0,)](y)
        return [y]

    # Values of the device, read on the host

    @idiom
    def tri_grid_from_item(s: Buffers) -> list[torch.Tensor]:
        y = torch.zeros(8, dtype=torch.int32, device=s.dev)
        mark_kernel[(s.n.item(),)](y)
        return [y]

    @idiom
    def tri_grid_from_tensor(s: Buffers) -> list[torch.Tensor]:
        y = torch.zeros(8, dtype=torch.int32, device=s.dev)
        mark_kernel[(s.n,)](y)
        return [y]

    @idiom
    def tri_grid_function_reads(s: Buffers) -> list[torch.Tensor]:
        y = torch.zeros(8, dtype=torch.int32, device=s.dev)
        mark_kernel[lambda meta: (int(s.n),)](y)
        return [y]

    @idiom
    def tri_scalar_from_item(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel[(2,)](s.x, y, s.n.item(), 6, BLOCK=4)
        return [y]

    # Memory of the host

    @idiom
    def tri_writes_pinned(s: Buffers) -> list[torch.Tensor]:
        add_kernel[(2,)](s.x, s.pinned, 1, 6, BLOCK=4)
        return [s.x]

    @idiom
    def tri_reads_pinned(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel[(2,)](s.pinned, y, 1, 6, BLOCK=4)
        return [y]

    @idiom
    def tri_reads_pageable(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel[(2,)](s.lens_cpu, y, 1, 6, BLOCK=4)
        return [y]

    @idiom
    def tri_scalar_is_host_tensor(s: Buffers) -> list[torch.Tensor]:
        """A 0-dim tensor is a pointer to Triton."""
        y = torch.empty_like(s.x)
        add_kernel[(2,)](s.x, y, s.lens_cpu[3], 6, BLOCK=4)
        return [y]

    @idiom
    def tri_grid_is_int(s: Buffers) -> list[torch.Tensor]:
        y = torch.zeros(8, dtype=torch.int32, device=s.dev)
        mark_kernel[4](y)
        return [y]

    @program
    def tri_pinned_read_in_capture(s: Buffers) -> list[Any]:
        """What the host sees of pinned memory that a captured kernel writes: in the capture, after it, after a replay."""
        target = torch.zeros(6, dtype=torch.int32).pin_memory()
        seen = []
        add_kernel[(2,)](s.lens, s.out, 1, 6, BLOCK=4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add_kernel[(2,)](s.lens, target, 1, 6, BLOCK=4)
            seen.append(target.tolist())
        seen.append(target.tolist())
        graph.replay()
        torch.cuda.synchronize()
        return [*seen, target.tolist()]

    @program
    def tri_input_freed_and_reused(s: Buffers) -> list[Any]:
        """A buffer that a captured kernel reads is dropped, and its memory given to another tensor."""
        buffer = torch.full((3 << 20,), 1, dtype=torch.int32, device=s.dev)
        y = torch.zeros(4, dtype=torch.int32, device=s.dev)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add_kernel[(1,)](buffer, y, 10, 4, BLOCK=4)
        address = buffer.data_ptr()
        del buffer
        other = torch.full((3 << 20,), 7, dtype=torch.int32, device=s.dev)
        graph.replay()
        return [other.data_ptr() == address, y.tolist()]

    @program
    def tri_table_of_addresses(s: Buffers) -> list[Any]:
        layers = [torch.zeros(4, dtype=torch.int32, device=s.dev) for _ in range(3)]
        addresses = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.int64, device=s.dev)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fill_tables_kernel[(3,)](addresses, s.n, N=4)
        before = [layer.tolist() for layer in layers]
        graph.replay()
        return [before, [layer.tolist() for layer in layers]]

    @program
    def tri_counters_over_replays(s: Buffers) -> list[Any]:
        counters = torch.zeros(9, dtype=torch.int32, device=s.dev)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            count_kernel[(2,)](s.lens, counters, 6, BLOCK=4)
        seen = [counters.tolist()]
        for _ in range(3):
            graph.replay()
            seen.append(counters.tolist())
        return seen

    # How kernels are made and launched

    @idiom
    def tri_run(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel.run(s.x, y, 1, n=6, BLOCK=4, grid=(2, 1, 1), warmup=False, num_warps=1, num_stages=2)
        return [y]

    @idiom
    def tri_warmup_first(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        add_kernel.warmup(s.x, y, 1, 6, BLOCK=16, grid=(1,))
        add_kernel[(1,)](s.x, y, 1, 6, BLOCK=16)
        return [y]

    @idiom
    def tri_autotuned(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        tuned_kernel[lambda meta: (triton.cdiv(6, meta["BLOCK"]),)](s.x, y, 6)
        return [y]

    @idiom
    def tri_heuristics(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        heuristic_kernel[(1,)](s.x, y, 6)
        return [y]

    @program
    def tri_first_launch_in_capture(s: Buffers) -> list[Any]:
        """Compiled and loaded while the stream captures."""
        y = torch.zeros_like(s.x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add_kernel[(1,)](s.x, y, 3, 6, BLOCK=64)
        before = y.tolist()
        graph.replay()
        return [before, (y - s.x).tolist()]

    @program
    def tri_first_tuning_in_capture(s: Buffers) -> list[Any]:
        """The key is new: Triton measures, which waits for the device."""
        y = torch.zeros_like(s.x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tuned_kernel[(2,)](s.x, y, 5)
        graph.replay()
        return y.tolist()

    @program
    def tri_refused_in_capture(s: Buffers) -> list[Any]:
        """A host tensor refused costs the launch, not the capture."""
        y = torch.zeros_like(s.x)
        add_kernel[(2,)](s.x, s.out, 3, 6, BLOCK=4)
        graph = torch.cuda.CUDAGraph()
        refused = False
        with torch.cuda.graph(graph):
            try:
                add_kernel[(2,)](s.lens_cpu, y, 3, 6, BLOCK=4)
            except ValueError as error:
                refused = "cannot be accessed from Triton" in str(error)
            add_kernel[(2,)](s.x, y, 3, 6, BLOCK=4)
        graph.replay()
        return [refused, (y - s.x).tolist()]

    # Streams

    @idiom
    def tri_on_side_stream(s: Buffers) -> list[torch.Tensor]:
        y = torch.empty_like(s.x)
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            add_kernel[(2,)](s.x, y, 1, 6, BLOCK=4)
        main.wait_stream(side)
        return [y]

    @idiom
    def tri_side_stream_unjoined(s: Buffers) -> list[torch.Tensor]:
        y = torch.zeros_like(s.x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            add_kernel[(2,)](s.x, y, 1, 6, BLOCK=4)
        return [y]

    @program
    def tri_beside_the_capture(s: Buffers) -> list[Any]:
        """A launch on a stream that takes no part runs at once."""
        outside = torch.cuda.Stream()
        inside, beside = torch.zeros(8, dtype=torch.int32, device=s.dev), torch.zeros(8, dtype=torch.int32, device=s.dev)
        mark_kernel[(1,)](s.out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            mark_kernel[(3,)](inside)
            with torch.cuda.stream(outside):
                mark_kernel[(5,)](beside)
        torch.cuda.synchronize()
        seen = [inside.tolist(), beside.tolist()]
        graph.replay()
        return [*seen, inside.tolist()]
