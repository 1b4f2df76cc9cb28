"""The real device. Skipped where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from capfuzz import corpus
from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.corpus.replay import Status, subject_of
from capfuzz.differential import SIMPLEST, Verdict
from capfuzz.findings.finding import signature
from capfuzz.targets import Case, Subject, get_target, shipped, variant
from capfuzz.workers import WorkerPool

HAS_GPU = bool(list(Path("/dev").glob("nvidia[0-9]*"))) or Path("/dev/kfd").exists()
pytestmark = pytest.mark.skipif(
    not HAS_GPU or (torch.version.cuda is None and torch.version.hip is None), reason="there is no GPU that this torch can use"
)
TARGET = get_target("fold_indptr")
CORPUS = Path(__file__).parents[2] / "corpus" / "fold_indptr"
SMALL = Case(
    {"fold_factor": 2, "dtype": "int32", "layout": "strided"},
    [{"lengths": [2, 0, 3], "start": 1}, {"lengths": [1, 1, 1], "start": 0}],
)


@pytest.mark.parametrize("name", TARGET.variants)
def test_every_variant_has_its_verdict(name: str) -> None:
    with WorkerPool(variant(TARGET, name), "cuda") as pool:
        labels = {pool.judge(case.with_schedule(SIMPLEST)).label for case in drawn(TARGET.strategy(), 150, 1)}
    assert labels <= {TARGET.variants[name].label, "equivalent"}
    assert TARGET.variants[name].label in labels


def test_the_shipped_implementation_is_equivalent_and_the_simulated_device_says_the_same() -> None:
    with WorkerPool(shipped(TARGET), "cuda") as pool:
        assert {pool.judge(case).label for case in drawn(TARGET.strategy(), 150, 2)} == {"equivalent"}


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.name)
def test_corpus_entries_show_on_the_gpu_what_they_show_on_the_simulated_device(path: Path) -> None:
    entry = corpus.load(path)
    subject = subject_of(entry)
    with WorkerPool(subject, "cuda") as pool:
        assert corpus.replay(entry, subject, pool.judge).status is Status.FAILED


def test_failed_captures_do_not_spoil_the_ones_that_follow() -> None:
    subject = Subject(TARGET, "user:capfuzz.targets.fold_indptr:item_read", TARGET.variants["item_read"].function)
    with WorkerPool(subject, "cuda") as pool:
        assert [pool.judge(SMALL).label for _ in range(5)] == ["capture_error:synchronization"] * 5


def test_an_assert_on_the_device_costs_one_worker_and_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asserting.py").write_text(
        "import torch\n"
        "from capfuzz.targets.fold_indptr import fold_indptr\n\n\n"
        "def asserts(indptr, fold_factor):\n"
        "    out = fold_indptr(indptr, fold_factor)\n"
        "    if fold_factor < 2 or not torch.cuda.is_current_stream_capturing():\n"
        "        return out\n"
        "    return out + torch.zeros(1, dtype=out.dtype, device=out.device)[indptr[:1].long() * 0 + 5]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with WorkerPool(Subject(TARGET, "user:asserting:asserts", lambda: None), "cuda") as pool:
        outcome = pool.judge(SMALL)
        assert outcome.verdict is Verdict.REPLAY_ERROR
        assert "device-side assert triggered" in outcome.message
        assert pool.judge(SMALL.with_value("fold_factor", 1)).label == "equivalent"


def test_divergences_are_blamed_on_the_same_line_as_on_the_simulated_device() -> None:
    for name in ("host_lengths", "unwritten_head", "accumulating_workspace", "cached_tensor"):
        found = []
        for device in ("sim", "cuda"):
            with WorkerPool(variant(TARGET, name), device) as pool:
                outcome = pool.judge(SMALL)
                assert outcome.blame.location is not None
                found.append((outcome.label, outcome.blame.location.line))
        assert found[0] == found[1], name


def test_an_assert_in_eager_code_is_blamed_on_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late.py").write_text(
        "import torch\n"
        "from capfuzz.targets.fold_indptr import fold_indptr\n\n\n"
        "def late(indptr, fold_factor):\n"
        "    table = torch.zeros(2, dtype=torch.int64, device='cuda')\n"
        "    table[indptr[:1].long() + 5]\n"
        "    return fold_indptr(indptr, fold_factor)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with WorkerPool(Subject(TARGET, "user:late:late", lambda: None), "cuda") as pool:
        outcome = pool.judge(SMALL)
        assert outcome.verdict is Verdict.EAGER_ERROR
        assert outcome.blame.location is None  # the host noticed somewhere later
        exact = pool.judge(SMALL, outcome.label)
        assert exact.blame.location is not None
        assert exact.blame.location.line == 7


def test_an_error_of_the_host_in_eager_code_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The op is part of it: however the worker is asked, and on the simulated device too."""
    (tmp_path / "shapes.py").write_text("def shapes(indptr, fold_factor):\n    return indptr + indptr[:-1].repeat(7)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = set()
    for device in ("cuda", "sim"):
        with WorkerPool(Subject(TARGET, "user:shapes:shapes", lambda: None), device) as pool:
            outcome = pool.judge(SMALL)
            names |= {signature(TARGET.name, outcome), signature(TARGET.name, pool.judge(SMALL, outcome.label))}
    assert len(names) == 1
