"""Random numbers: the device's generator, generators of one's own, the host's, and their state around a capture."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F

from capfuzz.conformance.buffers import Buffers
from capfuzz.conformance.suite import idiom, program

# Draws from the device's default generator


@idiom
def rand(s: Buffers) -> list[torch.Tensor]:
    return [torch.rand(4, device=s.dev)]


@idiom
def randint(s: Buffers) -> list[torch.Tensor]:
    return [torch.randint(0, 9, (4,), device=s.dev)]


@idiom
def randperm(s: Buffers) -> list[torch.Tensor]:
    return [torch.randperm(4, device=s.dev)]


@idiom
def randperm_large(s: Buffers) -> list[torch.Tensor]:
    return [torch.randperm(50_000, device=s.dev)[:8]]


@idiom
def dropout(s: Buffers) -> list[torch.Tensor]:
    return [F.dropout(s.f, 0.5)]


@idiom
def dropout_inplace(s: Buffers) -> list[torch.Tensor]:
    F.dropout(s.f, 0.5, inplace=True)
    return [s.f]


@idiom
def dropout_eval(s: Buffers) -> list[torch.Tensor]:
    return [F.dropout(s.f, 0.5, training=False) + 1]


@idiom
def randn_like_half(s: Buffers) -> list[torch.Tensor]:
    return [torch.randn_like(s.f, dtype=torch.float16)]


@idiom
def rand_out(s: Buffers) -> list[torch.Tensor]:
    torch.rand(6, 8, out=s.f)
    return [s.f]


@idiom
def two_draws(s: Buffers) -> list[torch.Tensor]:
    return [torch.rand(4, device=s.dev), torch.rand(4, device=s.dev)]


@idiom
def draw_nothing_then_draw(s: Buffers) -> list[torch.Tensor]:
    return [torch.rand(0, device=s.dev), torch.rand(4, device=s.dev)]


@idiom
def uniform_inplace(s: Buffers) -> list[torch.Tensor]:
    s.f.uniform_(-1, 1)
    return [s.f]


@idiom
def random_inplace(s: Buffers) -> list[torch.Tensor]:
    s.x.random_(0, 9)
    return [s.x]


@idiom
def normal_with_means(s: Buffers) -> list[torch.Tensor]:
    return [torch.normal(s.f, 0.5)]


@idiom
def bernoulli(s: Buffers) -> list[torch.Tensor]:
    return [torch.bernoulli(s.f.sigmoid())]


@idiom
def bernoulli_dev_probability(s: Buffers) -> list[torch.Tensor]:
    return [torch.empty_like(s.f).bernoulli_(s.f.sigmoid())]


@idiom
def bernoulli_cpu_probability(s: Buffers) -> list[torch.Tensor]:
    return [torch.empty_like(s.f).bernoulli_(torch.tensor(0.5))]


@idiom
def poisson(s: Buffers) -> list[torch.Tensor]:
    return [torch.poisson(s.lens.float())]


@idiom
def multinomial(s: Buffers) -> list[torch.Tensor]:
    return [torch.multinomial(torch.softmax(s.f, -1), 1)]


@idiom
def multinomial_replacement(s: Buffers) -> list[torch.Tensor]:
    return [torch.multinomial(torch.softmax(s.f, -1), 3, replacement=True)]


@idiom
def sample_by_exponential(s: Buffers) -> list[torch.Tensor]:
    """Sampling without `multinomial`, as serving engines write it."""
    probs = torch.softmax(s.f, -1)
    return [probs.div_(torch.empty_like(probs).exponential_(1)).argmax(-1)]


@idiom
def sample_by_gumbel(s: Buffers) -> list[torch.Tensor]:
    return [F.gumbel_softmax(s.f, hard=True)]


@idiom
def attention_dropout(s: Buffers) -> list[torch.Tensor]:
    q = s.f.view(1, 1, 6, 8)
    return [F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)]


@idiom
def default_generator_given(s: Buffers) -> list[torch.Tensor]:
    return [torch.rand(4, device=s.dev, generator=torch.cuda.default_generators[0])]


# Random numbers of the host


@idiom
def cpu_rand_moved(s: Buffers) -> list[torch.Tensor]:
    return [torch.rand(4).to(s.dev)]


@idiom
def cpu_rand_scalar(s: Buffers) -> list[torch.Tensor]:
    return [s.f + float(torch.rand(()))]


@idiom
def cpu_randperm_pinned(s: Buffers) -> list[torch.Tensor]:
    return [torch.randperm(64).pin_memory().to(s.dev, non_blocking=True)]


@idiom
def python_random(s: Buffers) -> list[torch.Tensor]:
    return [s.f + random.random()]


@idiom
def cpu_generator_for_device(s: Buffers) -> list[torch.Tensor]:
    return [torch.rand(4, device=s.dev, generator=torch.Generator())]


# Seeds and states inside the body


@idiom
def manual_seed(s: Buffers) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.rand(4, device=s.dev)]


@idiom
def cuda_manual_seed(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.manual_seed(11)
    return [torch.rand(4, device=s.dev)]


@idiom
def manual_seed_between_draws(s: Buffers) -> list[torch.Tensor]:
    """In eager both draws are the same."""
    first = torch.rand(4, device=s.dev)
    torch.cuda.manual_seed(11)
    return [first, torch.rand(4, device=s.dev)]


@idiom
def seed_from_step(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.manual_seed(int(s.lens_cpu[0]))
    return [torch.rand(4, device=s.dev)]


@idiom
def seed_anew(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.seed()
    return [s.x + 1]


@idiom
def initial_seed(s: Buffers) -> list[torch.Tensor]:
    return [s.x + torch.cuda.initial_seed()]


@idiom
def get_rng_state(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.get_rng_state()
    return [torch.rand(4, device=s.dev)]


@idiom
def set_rng_state(s: Buffers) -> list[torch.Tensor]:
    state = torch.cuda.get_rng_state()
    first = torch.rand(4, device=s.dev)
    torch.cuda.set_rng_state(state)
    return [first, torch.rand(4, device=s.dev)]


@idiom
def fork_rng(s: Buffers) -> list[torch.Tensor]:
    with torch.random.fork_rng(devices=[0]):
        inside = torch.rand(4, device=s.dev)
    return [inside, torch.rand(4, device=s.dev)]


@idiom
def generator_offset(s: Buffers) -> list[torch.Tensor]:
    torch.cuda.default_generators[0].get_offset()
    return [torch.rand(4, device=s.dev)]


@idiom
def generator_made_in_body(s: Buffers) -> list[torch.Tensor]:
    generator = torch.Generator(device=s.dev)
    generator.manual_seed(5)
    return [torch.rand(4, device=s.dev, generator=generator)]


# State around capture and replay


@program
def seed_before_replay_repeats(s: Buffers) -> list[Any]:
    """Whether a replay after a seed is eager's draw, whether the next one differs, whether the seed brings the first back."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev)
    torch.cuda.manual_seed(5)
    eager = torch.rand(4, device=s.dev).tolist()
    replays = []
    for seed in (5, None, 5):
        if seed is not None:
            torch.cuda.manual_seed(seed)
        graph.replay()
        replays.append(y.tolist())
    return [replays[0] == eager, replays[1] == replays[0], replays[2] == replays[0]]


@program
def replay_advances_generator(s: Buffers) -> list[Any]:
    """Whether an eager draw after a replay goes on where eager code would go on."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev)
    torch.cuda.manual_seed(5)
    eager = [torch.rand(4, device=s.dev).tolist() for _ in range(3)]
    torch.cuda.manual_seed(5)
    mixed = [torch.rand(4, device=s.dev).tolist()]
    graph.replay()
    mixed.append(y.tolist())
    mixed.append(torch.rand(4, device=s.dev).tolist())
    return [a == b for a, b in zip(eager, mixed, strict=True)]


@program
def capture_leaves_generator(s: Buffers) -> list[Any]:
    """Whether capturing a draw uses up random numbers."""
    torch.cuda.manual_seed(5)
    expected = torch.rand(4, device=s.dev).tolist()
    torch.cuda.manual_seed(5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev)
    drawn = torch.rand(4, device=s.dev).tolist()
    graph.replay()
    return [drawn == expected, y.tolist() == expected]


@program
def two_graphs_one_generator(s: Buffers) -> list[Any]:
    """Whether two graphs draw in turn as eager code would."""
    graphs, outputs = [], []
    for _ in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outputs.append(torch.rand(4, device=s.dev))
    torch.cuda.manual_seed(5)
    eager = [torch.rand(4, device=s.dev).tolist() for _ in range(4)]
    torch.cuda.manual_seed(5)
    drawn = []
    for which in (1, 0, 0, 1):
        graphs[which].replay()
        drawn.append(outputs[which].tolist())
    return [a == b for a, b in zip(eager, drawn, strict=True)]


@program
def seed_changed_in_capture(s: Buffers) -> list[Any]:
    torch.cuda.manual_seed(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.cuda.manual_seed(2)
        y = torch.rand(4, device=s.dev)
    graph.replay()
    return [y.numel()]


@program
def rng_state_set_between_replays(s: Buffers) -> list[Any]:
    """Whether a saved state brings the same numbers back, and whether it does for a second graph's worth of eager draws."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev)
    graph.replay()
    state = torch.cuda.get_rng_state()
    graph.replay()
    first = y.tolist()
    torch.cuda.set_rng_state(state)
    graph.replay()
    second = y.tolist()
    torch.cuda.set_rng_state(state)
    return [first == second, torch.rand(4, device=s.dev).tolist() == first]


@program
def generator_registered(s: Buffers) -> list[Any]:
    """Whether a registered generator's replays follow its own seed."""
    generator = torch.Generator(device=s.dev)
    generator.manual_seed(3)
    eager = [torch.rand(4, device=s.dev, generator=generator).tolist() for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev, generator=generator)
    generator.manual_seed(3)
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append(y.tolist())
    return [a == b for a, b in zip(eager, drawn, strict=True)]


@program
def generator_not_registered(s: Buffers) -> list[Any]:
    generator = torch.Generator(device=s.dev)
    generator.manual_seed(3)
    eager = torch.rand(4, device=s.dev, generator=generator).tolist()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev, generator=generator)
    generator.manual_seed(3)
    graph.replay()
    return [y.tolist() == eager]


@program
def generator_registered_by_state(s: Buffers) -> list[Any]:
    """One state for two generator objects: seeding one seeds the graph's."""
    generator = torch.Generator(device=s.dev)
    twin = torch.Generator(device=s.dev)
    twin.graphsafe_set_state(generator.graphsafe_get_state())
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator.graphsafe_get_state())
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev, generator=generator)
    drawn = []
    for seeded in (twin, generator):
        seeded.manual_seed(3)
        graph.replay()
        drawn.append(y.tolist())
    return [drawn[0] == drawn[1]]


@program
def seed_in_host_generator_only(s: Buffers) -> list[Any]:
    """`torch.default_generator.manual_seed` seeds the host; whether a replay follows."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(4, device=s.dev)
    drawn = []
    for _ in range(2):
        torch.default_generator.manual_seed(7)
        graph.replay()
        drawn.append(y.tolist())
    return [drawn[0] == drawn[1]]
