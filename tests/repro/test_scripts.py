"""Every registered fault has a script that shows it.

By default those run whose entry lies in `entries`, one of each verdict and cause. `CAPFUZZ_EVERY_FAULT=1` searches for
the others.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.corpus import Entry, from_finding, load
from capfuzz.devices import Device
from capfuzz.differential import Mismatch, Outcome, Verdict
from capfuzz.findings import Finding, signature
from capfuzz.findings.minimise import minimise
from capfuzz.repro import script
from capfuzz.targets import Case, Subject, Target, Variant, shipped, targets, variant
from capfuzz.targets.judge import judge
from tests.repro.conftest import ON_SIM

ENTRIES = Path(__file__).parent / "entries"  # minimal cases, one of each verdict
IMPLEMENTATION = 25  # lines, up to which a whole script has at most 60
LINES = 60
AROUND = 70  # lines that a script has beside the implementation
# Two parts and a buffer that is freed: more to do around a short implementation.
LONGER = {
    ("token_to_req_indices", "fresh_map"),
    ("batch_indices_positions", "rebinds_plan"),
    ("expand_seq_lens", "baked_total"),
}


def _chosen() -> list[tuple[Target, Variant]]:
    every = [(target, fault) for target in targets().values() for fault in target.variants.values()]
    return every if os.environ.get("CAPFUZZ_EVERY_FAULT") else [pair for pair in every if _kept(*pair).exists()]


def _kept(target: Target, fault: Variant) -> Path:
    return ENTRIES / f"{target.name}--{fault.name}.json"


FAULTS = _chosen()


def found(device: Device, target: Target, fault: Variant) -> tuple[Entry, Outcome]:
    """The entry of a fault, and what its case shows: the one that lies here, or else one that is searched for."""
    subject = variant(target, fault.name)
    if _kept(target, fault).exists():
        entry = load(_kept(target, fault))
        return entry, judge(device, subject, entry.case)
    for case in drawn(target.strategy(), 2000, 5):
        outcome = judge(device, subject, case)
        if outcome.label == fault.label:
            break
    else:
        raise AssertionError(f"{fault.name} was not found")
    name = signature(target.name, outcome)

    def still_fails(candidate: Case) -> bool:
        again = judge(device, subject, candidate, fault.label)
        return again.label == fault.label and signature(target.name, again) == name

    case = minimise(target, case, still_fails, 2.0).case
    outcome = judge(device, subject, case)
    return from_finding(Finding(target.name, subject.label, case, outcome, name, 5, "sim", "hypothesis")), outcome


@pytest.mark.parametrize(("target", "fault"), FAULTS, ids=[f"{t.name}-{f.name}" for t, f in FAULTS])
def test_the_script_shows_the_fault(device: Device, run_script: Callable[[str], Any], target: Target, fault: Variant) -> None:
    entry, outcome = found(device, target, fault)
    subject = variant(target, fault.name)
    ran = run_script(script(entry, subject, "# test", sim=True))
    assert (ran.code, ran.last) == (1, fault.label), ran.out
    if outcome.mismatch is not None:
        shows(ran.out, outcome.mismatch)
    for_gpus = script(entry, subject, "# test")
    for_a_gpu(for_gpus, subject, (target.name, fault.name))
    ran = run_script(ON_SIM + for_gpus)
    assert (ran.code, ran.last) == (1, fault.label), ran.out
    if entry.verdict is not Verdict.INVARIANT:  # there the shipped implementation says what is right
        mended = run_script(script(entry, shipped(target), "# test", sim=True))
        assert (mended.code, mended.last) == (0, "equivalent"), mended.out
        mended = run_script(ON_SIM + script(entry, shipped(target), "# test"))
        assert (mended.code, mended.last) == (0, "equivalent"), mended.out


def test_every_verdict_has_an_entry_here() -> None:
    """What is missing comes from `capfuzz run TARGET --variant NAME -x`."""
    labels = {fault.label for target in targets().values() for fault in target.variants.values()}
    assert labels == {load(path).label for path in ENTRIES.glob("*.json")}


def shows(out: str, mismatch: Mismatch) -> None:
    """Both sides of what differs are printed."""
    for side in (mismatch.expected, mismatch.actual):
        if isinstance(side, np.ndarray) and not mismatch.path.startswith("buffer") and side.dtype.kind in "iub":
            assert str(side.tolist()) in out


def for_a_gpu(text: str, subject: Subject, name: tuple[str, str]) -> None:
    tree = ast.parse(text)
    compile(tree, "gpu", "exec")
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    packages = {
        alias.split(".")[0]
        for node in imports
        for alias in ([a.name for a in node.names] if isinstance(node, ast.Import) else [str(node.module)])
    }
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    own = [f for f in functions if f.name not in ("arguments", "refill", "run", "place", "Poison", "other", "larger")]
    assert {f.name for f in own}, "there is an implementation"
    uses_numpy = any(re.search(r"\bnp\.", ast.unparse(f)) for f in own)
    allowed = {"torch", *sys.stdlib_module_names, *({"numpy"} if uses_numpy else set())}
    assert packages <= allowed, packages - allowed
    assert "capfuzz" not in text
    implementation = sum((f.end_lineno or 0) - f.lineno + 2 for f in own)
    lines = text.count("\n")
    assert 15 <= lines <= implementation + AROUND
    if implementation <= IMPLEMENTATION and name not in LONGER:
        assert lines <= LINES, f"{lines} lines, {implementation} of them the implementation"
    assert not re.search(r"def \w+\(.*: (torch|int|str|Any)", text), "a type hint is left"
    assert "@TARGET" not in text
