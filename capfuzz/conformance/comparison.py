"""Runs the suite on the simulated device and sets it beside a record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from capfuzz.conformance.known import KNOWN
from capfuzz.conformance.protocol import Measurement, measure
from capfuzz.conformance.records import Record
from capfuzz.conformance.suite import Idiom, suite
from capfuzz.devices.sim import sim


@dataclass(frozen=True)
class Compared:
    """One idiom on both. `agreement` is `agree`, `disagree`, `known` or `not modelled`."""

    idiom: Idiom
    recorded: Measurement
    simulated: Measurement

    @property
    def agreement(self) -> str:
        if agrees(self.recorded, self.simulated):
            return "agree"
        if self.idiom.name in KNOWN:
            return "known"
        if any("NotModelledError" in text for text in self.simulated.errors):
            return "not modelled"
        return "disagree"


def agrees(recorded: Measurement, simulated: Measurement) -> bool:
    """The same verdict and cause; for a refusal the same words; for a program the same observations."""
    same = (recorded.verdict, recorded.observed) == (simulated.verdict, simulated.observed)
    if recorded.verdict.startswith(("capture_error", "raised")):
        return same and recorded.message == simulated.message
    return same


def simulate(idiom: Idiom) -> Measurement:
    """One idiom on a simulated device of its own."""
    with sim():
        return measure(idiom)


def compare(record: Record) -> list[Compared]:
    """Every idiom of the record that the suite still has."""
    idioms = suite()
    return [Compared(idioms[n], r.measurement, simulate(idioms[n])) for n, r in record.idioms.items() if n in idioms]


def table(compared: list[Compared]) -> str:
    """Counts by the recorded verdict."""
    columns = ("agree", "known", "not modelled", "disagree")
    counts = Counter((item.recorded.verdict.partition(":")[0], item.agreement) for item in compared)
    verdicts = sorted({verdict for verdict, _ in counts})
    rows = [f"{'recorded verdict':20}" + "".join(f"{column:>14}" for column in columns)]
    for verdict in [*verdicts, "all"]:
        numbers = [sum(n for (v, c), n in counts.items() if c == column and verdict in (v, "all")) for column in columns]
        rows.append(f"{verdict:20}" + "".join(f"{number:14}" for number in numbers))
    return "\n".join(rows)
