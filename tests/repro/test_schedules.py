"""Faults that show only when the graph is driven in one way: the script drives it so."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from capfuzz.corpus import Entry, from_finding
from capfuzz.differential import Runner, Schedule
from capfuzz.findings import Finding, signature
from capfuzz.repro import script
from capfuzz.targets import Case, Subject, get_target
from capfuzz.targets.judge import judge
from tests.repro.conftest import ON_SIM

MINE = '''
import gc

import torch
import torch.nn.functional as F


def fold(indptr, fold_factor):
    lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    return F.pad(torch.cumsum(lengths, 0), (1, 0)).to(indptr.dtype)


_ones = {}


def lazy(indptr, fold_factor):
    """Makes a constant in its first call."""
    if "one" not in _ones:
        _ones["one"] = torch.tensor([1]).to(indptr.device)
    return fold(indptr, fold_factor) * _ones["one"].to(indptr.dtype)


def in_place(indptr, fold_factor):
    """Leaves its input changed."""
    out = fold(indptr, fold_factor)
    indptr[1:] += 1
    return out


_shared = {}


def shared_answer(indptr, fold_factor):
    """All graphs answer in one buffer."""
    out = fold(indptr, fold_factor)
    key = out.numel(), out.dtype
    if key not in _shared:
        _shared[key] = torch.empty_like(out)
    return _shared[key].copy_(out)


_kept = {}


def kept_from_a_capture(indptr, fold_factor):
    """Keeps a constant that the first capture has made."""
    if torch.cuda.is_current_stream_capturing():
        if "zero" not in _kept:
            _kept["zero"] = torch.zeros(1, dtype=torch.int64, device="cuda")
        return (fold(indptr, fold_factor) + _kept["zero"]).to(indptr.dtype)
    return fold(indptr, fold_factor)


_room = {"size": 0}


def growing(indptr, fold_factor):
    """Its workspace grows with the batch; the old one is freed."""
    out = fold(indptr, fold_factor)
    if out.numel() > _room["size"]:
        _room["size"], _room["buffer"] = out.numel(), torch.zeros(out.numel(), dtype=torch.int64, device="cuda")
    buffer = _room["buffer"][: out.numel()]
    return buffer.copy_(out).to(indptr.dtype)


_calls = {}


def of_the_last_eager_call(indptr, fold_factor):
    """Graphs add what eager calls count, once there is a graph."""
    if "count" not in _calls:
        _calls["count"] = torch.zeros(1, dtype=torch.int64, device="cuda")
    if torch.cuda.is_current_stream_capturing():
        _calls["captured"] = True
        return (fold(indptr, fold_factor) + _calls["count"]).to(indptr.dtype)
    if "captured" in _calls:
        _calls["count"].add_(1)
    return fold(indptr, fold_factor)


def spoils_views(indptr, fold_factor):
    """Its input is spoilt where that is a view."""
    out = fold(indptr, fold_factor)
    if not indptr.is_contiguous():
        indptr.zero_()
    return out


class ByRows:
    """Finds its graph by the number of rows, and forgets the fold factor."""

    def __init__(self):
        self.graphs = {}

    def __call__(self, indptr, fold_factor):
        key = indptr.numel()
        if key not in self.graphs:
            static = indptr.clone()
            fold(static, fold_factor)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = fold(static, fold_factor)
            self.graphs[key] = graph, static, out
        graph, static, out = self.graphs[key]
        static.copy_(indptr)
        graph.replay()
        return self.handed_out(out)

    def handed_out(self, out):
        return out.clone()


class HandsOutItsOwn(ByRows):
    """Hands out the static buffer."""

    def handed_out(self, out):
        return out


class Frozen(ByRows):
    """Does not copy the inputs in."""

    def __call__(self, indptr, fold_factor):
        self.first = getattr(self, "first", indptr)
        return super().__call__(self.first, fold_factor)


class Syncs(ByRows):
    """Reads a device value while capturing."""

    def __call__(self, indptr, fold_factor):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            return fold(indptr, fold_factor) if indptr[-1].item() else indptr
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "mine_driven.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("mine_driven")
    del sys.modules["mine_driven"]


TARGET = get_target("fold_indptr")
ONE, TWO = [{"lengths": [1], "start": 0}], [{"lengths": [1], "start": 0}, {"lengths": [2], "start": 0}]


def case(steps: list[Any], layout: str = "contiguous", **schedule: Any) -> Case:
    return Case({"fold_factor": 1, "dtype": "int32", "layout": layout}, steps, Schedule(**schedule))


def entry_of(subject: Subject, driven: Case) -> Entry:
    """The entry of what the case shows, judged with the module as it is when nothing has run yet."""
    from capfuzz.devices import open_device

    with open_device("sim") as device:
        outcome = judge(device, subject, driven)
    name = signature(TARGET.name, outcome)
    return from_finding(Finding(TARGET.name, subject.label, driven, outcome, name, 1, "sim", "hypothesis"))


FUNCTIONS = {
    "lazy": ("capture_error:host_copy", case(ONE, warm_ups=0)),
    "in_place": ("divergence:not_idempotent", case(ONE, warm_ups=2)),
    "shared_answer": ("divergence:aliased_output", case(TWO, second="twin")),
    "kept_from_a_capture": ("divergence:unwritten_output", case(ONE, second="twin", second_dies=True, between="churn")),
    "growing": ("dangling_buffer", case(ONE, between="larger")),
    "of_the_last_eager_call": ("divergence:not_idempotent", case(TWO, eager_between=True)),
    "spoils_views": ("divergence:values", case(ONE, "strided", eager_layout="contiguous")),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_script_drives_the_graph_as_the_case_does(mine: Any, run_script: Callable[[str], Any], name: str) -> None:
    label, driven = FUNCTIONS[name]
    subject = Subject(TARGET, f"user:mine_driven:{name}", getattr(mine, name))
    entry = entry_of(subject, driven)
    assert entry.label == label
    importlib.reload(mine)
    subject = Subject(TARGET, subject.label, getattr(mine, name))
    simply = entry_of(subject, driven.with_schedule(Schedule()))
    assert simply.label == "equivalent", "it needs its schedule"
    importlib.reload(mine)
    subject = Subject(TARGET, subject.label, getattr(mine, name))
    for text in (script(entry, subject, "# test", sim=True), ON_SIM + script(entry, subject, "# test")):
        ran = run_script(text)
        assert (ran.code, ran.last) == (1, label), ran.out


RUNNERS = {
    "ByRows": ("divergence:shape", case(ONE, second="value", axis="fold_factor")),
    "HandsOutItsOwn": ("divergence:aliased_output", case(TWO)),
    "Frozen": ("divergence:stale_host_value", case(TWO)),
    "Syncs": ("capture_error:synchronization", case(ONE)),
}


@pytest.mark.parametrize("name", RUNNERS)
def test_a_runner_is_called_as_a_server_calls_it(mine: Any, run_script: Callable[[str], Any], name: str) -> None:
    label, driven = RUNNERS[name]
    subject = Subject(TARGET, f"variant:{name}", Runner(mine.fold, getattr(mine, name)))
    entry = entry_of(subject, driven)
    assert entry.label == label
    for text in (script(entry, subject, "# test", sim=True), ON_SIM + script(entry, subject, "# test")):
        ran = run_script(text)
        assert (ran.code, ran.last) == (1, label), ran.out
