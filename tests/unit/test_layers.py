"""Imports point one way, as ARCHITECTURE.md says. The diagram there is what is tested: it is read, not repeated."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "capfuzz"
# Modules at the root that stand outside the layers: a version number and the two doors.
DOORS = {"__init__", "__main__", "version"}


def allowed() -> dict[str, set[str]]:
    """For each part of the package, the parts that it may import, from the arrows of ARCHITECTURE.md."""
    diagram = re.search(r"```\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
    assert diagram is not None
    rules: dict[str, set[str]] = {}
    for line in diagram.group(1).splitlines():
        chain = [[name.strip() for name in level.split(",")] for level in line.split("->")]
        for number, level in enumerate(chain):
            below = {name for lower in chain[number:] for name in lower}  # its own level included
            for name in level:
                rules.setdefault(name, set()).update(below)
    return rules


def imported(source: str, module: str) -> set[str]:
    """Every module of capfuzz that a source file imports, at its top, in a function or for types only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "capfuzz"}


def part(module: str) -> str:
    """`capfuzz.corpus.store` -> `corpus`; the root itself -> `__init__`."""
    return (module.split(".") + ["__init__"])[1]


def wrong(source: str, module: str, rules: dict[str, set[str]]) -> list[str]:
    """The imports of one file that point the wrong way."""
    here = part(module)
    return sorted(
        f"{module} imports {name}"
        for name in imported(source, module)
        if part(name) not in DOORS and part(name) not in rules[here]
    )


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name] = path
    return found


LAYERED = {name: path for name, path in modules().items() if part(name) not in DOORS}


def test_the_diagram_is_the_one_that_was_meant() -> None:
    rules = allowed()
    order = ["campaign", "corpus", "findings", "targets", "differential", "devices"]
    assert rules["pytest_plugin"] == {"cli", "pytest_plugin", "workers", "repro", *order}
    assert rules["cli"] == {"reports", *rules["pytest_plugin"]}
    assert rules["reports"] == {"reports", *order}
    assert rules["campaign"] == {"workers", *order}
    for number, name in enumerate(order[1:], 1):
        assert rules[name] == set(order[number:])
    assert rules["repro"] == {"repro", *order[1:]}
    assert rules["workers"] == {"workers", "targets", "differential", "devices"}
    assert rules["conformance"] == {"conformance", "devices"}


def test_every_part_of_the_package_has_a_place() -> None:
    assert {part(name) for name in LAYERED} == set(allowed())


@pytest.mark.parametrize("module", sorted(LAYERED))
def test_imports_point_down(module: str) -> None:
    assert wrong(LAYERED[module].read_text(), module, allowed()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("capfuzz.devices.sim.graph", "from capfuzz.differential import check\n"),
        ("capfuzz.devices.sim.graph", "import capfuzz.targets\n"),
        ("capfuzz.devices.base", "def late():\n    from capfuzz.conformance.suite import suite\n"),
        (
            "capfuzz.differential.check",
            "if TYPE_CHECKING:\n    from capfuzz import targets\n",
        ),
        ("capfuzz.corpus.store", "from capfuzz.campaign.events import Found as F\n"),
        ("capfuzz.campaign.campaign", "from capfuzz.cli.text import finding_text\n"),
        ("capfuzz.campaign.campaign", "from capfuzz.reports import JsonLines\n"),
        ("capfuzz.reports.junit", "from capfuzz.cli.text import finding_text\n"),
        ("capfuzz.reports.html", "from capfuzz.workers import WorkerPool\n"),
        ("capfuzz.workers.pool", "from capfuzz.campaign import Campaign\n"),
        ("capfuzz.workers.pool", "from capfuzz.findings import signature\n"),
        ("capfuzz.workers.worker", "from capfuzz.corpus import replay\n"),
        ("capfuzz.corpus.replay", "from capfuzz.workers import WorkerPool\n"),
        ("capfuzz.corpus.care", "from capfuzz.repro import script\n"),
        ("capfuzz.repro.script", "from capfuzz.workers import WorkerPool\n"),
        ("capfuzz.targets.judge", "from capfuzz.workers import JudgeFailed\n"),
        ("capfuzz.campaign.campaign", "import capfuzz.pytest_plugin as plugin\n"),
        ("capfuzz.conformance.protocol", "from capfuzz.differential import check\n"),
        ("capfuzz.cli.run", "from capfuzz.conformance import records\n"),
    ],
)
def test_a_planted_import_is_caught(module: str, source: str) -> None:
    assert len(wrong(source, module, allowed())) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("capfuzz.cli.run", "from capfuzz import corpus, targets\nfrom capfuzz.version import VERSION\n"),
        ("capfuzz.corpus.entry", "from capfuzz.corpus import store\nimport msgspec\n"),
        ("capfuzz.cli.replay", "from capfuzz.workers import WorkerError\n"),
        ("capfuzz.workers.worker", "from capfuzz.targets.judge import judge\nfrom capfuzz.devices import open_device\n"),
        ("capfuzz.conformance.protocol", "from capfuzz.devices.errors import rule_of\n"),
    ],
)
def test_an_import_that_is_allowed_is_not(module: str, source: str) -> None:
    assert wrong(source, module, allowed()) == []


def uses(source: str, package: str) -> bool:
    tree = ast.walk(ast.parse(source))
    names = [
        name
        for node in tree
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return any(name.split(".")[0] == package for name in names)


@pytest.mark.parametrize("module", [name for name in sorted(LAYERED) if part(name) in ("devices", "differential")])
def test_the_check_and_the_devices_know_nothing_of_hypothesis(module: str) -> None:
    assert not uses(LAYERED[module].read_text(), "hypothesis")


def test_hypothesis_is_found_where_it_is_used() -> None:
    assert uses((PACKAGE / "campaign" / "hypothesis_engine.py").read_text(), "hypothesis")
