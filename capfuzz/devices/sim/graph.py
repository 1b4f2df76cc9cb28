"""`torch.cuda.CUDAGraph` on the simulated device: replay runs a capture's nodes, with no mode active."""

from __future__ import annotations

import warnings
from collections import Counter
from itertools import count

import torch

from capfuzz.devices.errors import CudaError, DanglingBufferError, Rule, at_node, not_permitted
from capfuzz.devices.sim import memory
from capfuzz.devices.sim.asserts import at_replay
from capfuzz.devices.sim.capture import Capture, Node, Step, TracedNodes, behind_autograd
from capfuzz.devices.sim.generators import SimGenerator, refused_in_capture
from capfuzz.devices.sim.runtime import Machine, Runtime, active, current
from capfuzz.devices.sim.tensor import storage_id
from capfuzz.devices.tracer import Tracer

_private_pools = count(1)
_NOWHERE = -1


class CUDAGraph:
    """`torch.cuda.CUDAGraph` on the simulated device."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._keep_graph = keep_graph
        self._capture: Capture | None = None
        self._nodes: list[Node] | None = None
        self._owned: list[torch.Tensor] = []
        self._pool: tuple[int, int] | None = None
        self._registered: set[SimGenerator] = set()
        self._in_autograd = False
        self._machine: Machine | None = None
        self._host_memory: list[torch.Tensor] = []
        # Known once it is sealed, before its first replay: others' memory that the graph uses, and what to run.
        self.is_sealed = False
        self._addresses: dict[int, int] = {}
        self._outside: list[memory.OutsideBuffer] = []
        self._steps: list[Step] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Lets captured ops draw from this generator too; the default one always may."""
        if not isinstance(generator, SimGenerator):
            raise RuntimeError("register_generator_state expected a CUDA generator")
        self._registered.add(generator.root)

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        runtime = current()
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got " + capture_error_mode
            )
        if self._nodes is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if runtime.stream is runtime.default_stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
                "the default stream.)"
            )
        if runtime.capturing is not None:
            raise runtime.capturing.invalidate(not_permitted(Rule.NESTED_CAPTURE))
        self._pool = pool if pool is not None else (next(_private_pools), 0)
        self._capture = Capture(runtime, capture_error_mode, self._free_in_pool(runtime) if pool is not None else [])
        self._capture.registered = self._registered
        if runtime.tracer is not None and runtime.tracer.of_capture:
            self._capture.nodes = TracedNodes(runtime.tracer)
        runtime.machine.set_capture(self._capture)

    def _free_in_pool(self, runtime: Runtime) -> list[torch.Tensor]:
        """What the pool's other graphs own and nobody holds any more."""
        return [
            tensor
            for graph in runtime.machine.graphs()
            if graph._pool == self._pool and graph._nodes is not None
            for tensor in memory.dropped(graph._nodes, graph._owned)
        ]

    def seal(self, machine: Machine) -> None:
        """Makes the steps; nodes hold others' memory by aliases that are counted, from now on."""
        self.is_sealed = True
        if self._nodes is None:
            return
        self._forget_aliases(machine)
        moved = {buffer.storage for buffer in self._outside if buffer.has_moved}
        inside = {storage_id(tensor) for graph in machine.graphs() for tensor in (*graph._owned, *graph._host_memory)}
        self._outside = memory.alias_outside(self._nodes, inside, machine.pinned.__contains__, self._addresses)
        for buffer in self._outside:
            if buffer.storage in moved:
                buffer.address = _NOWHERE
        self._addresses = memory.addresses_of(self._nodes)  # of the aliases, should it be sealed again
        self._steps = [node.step for node in self._nodes if node.kind != "alloc"]
        machine.aliases.update({buffer.storage: buffer.aliases for buffer in self._outside})

    def _forget_aliases(self, machine: Machine) -> None:
        if self._outside:
            machine.aliases -= Counter({buffer.storage: buffer.aliases for buffer in self._outside})

    def abort(self, succeeded: bool = False) -> None:
        """Ends the capture without a graph; nothing that it ran is to be seen."""
        capture, self._capture = self._capture, None
        if capture is not None:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._InferenceMode(True):
                capture.finish(succeeded)
                self._addresses = memory.addresses_of(capture.nodes) if succeeded else {}
            capture.runtime.machine.set_capture(capture.outer)

    def capture_end(self) -> None:
        if all(node.kind in ("alloc", "host") for node in self.end_capture()):
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device "
                "or stream.",
                stacklevel=2,
            )

    def end_capture(self) -> list[Node]:
        """`capture_end` without the warning about an empty graph; returns the nodes."""
        capture = self._capture
        if capture is None:
            raise CudaError("cudaErrorIllegalState")
        if current().stream is not capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        unjoined = capture.error is None and capture.unjoined()
        self.abort(succeeded=capture.error is None and not unjoined)
        capture.check_valid()
        if unjoined:
            raise CudaError("cudaErrorStreamCaptureUnjoined", Rule.UNJOINED_STREAM)
        if capture.outer is not None:  # two captures may be under way; to make a graph of one is not allowed then
            raise capture.outer.invalidate(not_permitted(Rule.NESTED_CAPTURE))
        self._nodes = capture.nodes
        self.is_sealed = False
        self._owned = capture.owned
        self._host_memory = capture.host_memory
        self._machine = capture.runtime.machine
        self._machine.add_graph(self)
        self._in_autograd = capture.in_autograd
        return self._nodes

    def instantiate(self) -> None:
        if self._nodes is None:
            raise RuntimeError("capture_end() must have been called before calling instantiate")
        if not self._keep_graph:
            raise RuntimeError("instantiate() is intended to be called by the user only when keep_graph=true")

    def raw_cuda_graph(self) -> int:
        if self._nodes is None:
            raise RuntimeError("You cannot access the raw cudaGraph_t instance until capture_end() has been called")
        if not self._keep_graph:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )
        return id(self)

    def raw_cuda_graph_exec(self) -> int:
        self._require_captured("raw_cuda_graph_exec")
        return id(self)

    def replay(self) -> None:
        self._require_captured("replay")
        if current().stream.capture is not None:
            raise refused_in_capture("Cannot prepare for replay during capturing stage.")
        if torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0:
            self._run()
            return
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            self._run()

    def _refuse_dangling(self) -> None:
        machine = current().machine
        machine.seal_graphs()
        aliases = machine.aliases
        for buffer in self._outside:
            if buffer.has_moved or memory.tensors_in(buffer.storage) <= aliases[buffer.storage]:
                raise DanglingBufferError(buffer.what, buffer.node.op, buffer.node.location)

    def _run(self) -> None:
        self._refuse_dangling()
        try:
            if self._in_autograd:
                with behind_autograd(self._owned), torch._C._InferenceMode(True):
                    for step in self._steps:
                        step()
                return
            with torch._C._InferenceMode(True):
                for step in self._steps:
                    step()
        except (IndexError, RuntimeError) as error:
            raise at_replay(error) from None

    def replay_traced(self, tracer: Tracer) -> None:
        """Replays and traces every node. Call it with no mode active."""
        with torch._C._InferenceMode(True):
            nodes = self._require_captured("replay")
            self._refuse_dangling()
            for node in nodes:
                try:
                    node.step()
                except Exception as error:
                    raise at_node(at_replay(error), node.op, node.location) from None
                tracer.add(node.op, node.kind, node.written, node.location)

    def _require_captured(self, what: str) -> list[Node]:
        if self._nodes is None:
            raise RuntimeError(f"Called CUDAGraph::{what} without a preceding successful capture.")
        return self._nodes

    @property
    def nodes(self) -> list[Node]:
        """The recorded nodes, in order."""
        return self._require_captured("nodes")

    def reset(self) -> None:
        """Drops the graph. While something captures in its machine, that is not allowed, and costs the capture."""
        runtime = active()
        if self._nodes is not None and runtime is not None and runtime.machine is self._machine and runtime.capture is not None:
            runtime.capture.invalidate(not_permitted())
        if self._machine is not None:
            self._forget_aliases(self._machine)
            self._machine.forget_graph(self)
        self._nodes = None
        self._owned = []
        self._host_memory = []
        self._outside = []
        self._steps = []
        self._pool = None

    def __del__(self) -> None:
        if self._nodes is not None:
            self.reset()

    def pool(self) -> tuple[int, int]:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def enable_debug_mode(self) -> None:
        return None

    def debug_dump(self, debug_path: str) -> None:
        with open(debug_path, "w", encoding="utf-8") as file:
            for index, node in enumerate(self._require_captured("debug_dump")):
                file.write(f"{index}\t{node.kind}\t{node.op}\n")
