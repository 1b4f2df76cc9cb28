"""Every idiom of the conformance suite on the simulated device, against what was recorded on hardware."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import pytest

from capfuzz.conformance.comparison import Compared, simulate, table
from capfuzz.conformance.known import KNOWN
from capfuzz.conformance.protocol import Measurement
from capfuzz.conformance.records import Record, nearest, shipped
from capfuzz.conformance.suite import suite
from capfuzz.devices.sim import recorded_calls
from capfuzz.devices.sim.capture import Capture

RECORDS = {f"{record.device}, torch {record.torch}": record for record in shipped()}
IDIOMS = suite()
HAS_TRITON = any(name.startswith("tri_") for name in IDIOMS)


def known_here(names: Iterable[str]) -> list[str]:
    """Where Triton is missing, so are the idioms of its kernels."""
    return [name for name in names if HAS_TRITON or not name.startswith("tri_")]


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
def test_the_record_was_made_of_this_code(record: Record) -> None:
    """A changed idiom needs a new measurement: `python -m capfuzz.conformance record`."""
    assert not [name for name in IDIOMS if name not in record.idioms]
    names = known_here(record.idioms)
    assert not [name for name in names if name not in IDIOMS]
    assert not [name for name in names if record.idioms[name].source != IDIOMS[name].source]


@pytest.mark.parametrize("name", IDIOMS)
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS.keys())
def test_the_simulated_device_agrees_with_the_record(record: Record, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, about what idioms do on purpose
        compared = Compared(IDIOMS[name], record.idioms[name].measurement, simulate(IDIOMS[name]))
    if name in KNOWN:
        assert compared.agreement == "known", "it agrees now: take it out of `KNOWN`"
    else:
        assert compared.agreement == "agree", f"recorded {compared.recorded}\nsimulated {compared.simulated}"


@pytest.mark.parametrize("name", IDIOMS)
def test_calls_recorded_whole_are_what_their_ops_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Capture, "by_call", True)
    monkeypatch.setattr(recorded_calls, "_known", {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = simulate(IDIOMS[name])  # op by op, to learn which calls may be
        by_call = simulate(IDIOMS[name])
    assert Compared(IDIOMS[name], first, by_call).agreement == "agree", f"op by op {first}\nby call {by_call}"


def test_the_suite_is_large_and_has_every_verdict() -> None:
    record = shipped()[0]
    verdicts = {recorded.measurement.verdict.partition(":")[0] for recorded in record.idioms.values()}
    assert {"equivalent", "diverges", "capture_error", "eager_error", "observed", "raised"} <= verdicts
    assert len(record.idioms) >= 300


def test_known_differences_name_idioms() -> None:
    assert set(known_here(KNOWN)) <= set(IDIOMS)


def test_the_nearest_record_is_chosen() -> None:
    made = [Record("GPU", version, "2026-12-01", {}) for version in ("2.9.1+cu130", "2.11.0+cu130", "2.14.0")]
    chosen = {
        version: nearest(made, version).torch for version in ("2.8.0", "2.10.0", "2.11.2", "2.12.0", "2.13.0+cpu", "3.0.0")
    }
    assert chosen == {
        "2.8.0": "2.9.1+cu130",
        "2.10.0": "2.11.0+cu130",
        "2.11.2": "2.11.0+cu130",
        "2.12.0": "2.11.0+cu130",
        "2.13.0+cpu": "2.14.0",
        "3.0.0": "2.14.0",
    }


def test_a_planted_disagreement_is_seen() -> None:
    """The comparison can fail: another verdict, other words, other observations."""
    idiom = IDIOMS["get_mask"]
    right = simulate(idiom)
    assert Compared(idiom, right, right).agreement == "agree"
    for wrong in (
        Measurement("equivalent"),
        Measurement(right.verdict, "other words"),
        Measurement("capture_error:host_copy", right.message),
    ):
        assert Compared(idiom, wrong, right).agreement == "disagree"
    assert Compared(idiom, Measurement("observed", observed=[1]), Measurement("observed", observed=[2])).agreement == "disagree"
    assert "disagree" in table([Compared(idiom, Measurement("equivalent"), right)])
