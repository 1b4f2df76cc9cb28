"""`--json`: what the docs say is what is printed, every line stands for itself, and nothing else is on standard output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from capfuzz.campaign.events import Event, Finished, Found, Progress, Started
from capfuzz.differential import Mismatch
from capfuzz.findings import SourceLine
from capfuzz.findings.heat import HeatMap
from capfuzz.reports import Ending, JsonLines, Words
from capfuzz.reports import json_lines as schema

DOCS = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
STRUCTS = {
    "started": schema.StartedRecord,
    "progress": schema.ProgressRecord,
    "finding": schema.FindingRecord,
    "finished": schema.FinishedRecord,
    "ended": schema.EndedRecord,
    "blame": SourceLine,
    "array": schema.Array,
    "difference": schema.Difference,
    "heat": HeatMap,
}
WORDS = Words(lambda found: "", lambda finding: "again")
Run = Callable[..., Any]
Events = Callable[..., list[Event]]


def sections() -> dict[str, str]:
    """The text below each heading."""
    parts = re.split(r"^##+ (.*)$", DOCS, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def lines(told: Sequence[Event], ending: Ending | None = None) -> list[schema.Record]:
    written: list[bytes] = []
    handler = JsonLines(written.append, WORDS)
    for event in told:
        handler(event)
    if ending is not None:
        handler.end(ending)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in written)
    return [msgspec.json.decode(line, type=schema.Record) for line in written]


def test_the_docs_have_the_fields_of_every_record_in_their_order() -> None:
    for name, struct in STRUCTS.items():
        fields = re.findall(r"^\| `(\w+)` \|", sections()[name], flags=re.MULTILINE)
        tag = struct.__struct_config__.tag_field
        assert fields == [*([tag, "version"] if tag else []), *(f for f in struct.__struct_fields__ if f != "version")]


def test_the_docs_know_every_record_and_its_version() -> None:
    assert {name for name, struct in STRUCTS.items() if struct.__struct_config__.tag_field} == {
        struct.__struct_config__.tag for struct in schema.Record.__args__
    }
    assert f"**{schema.VERSION}**" in DOCS


def test_the_examples_of_the_docs_are_records() -> None:
    examples = [json.loads(line) for line in re.findall(r"```json\n(.*)\n```", DOCS)]
    assert [example["record"] for example in examples] == ["started", "progress", "finding", "finished", "ended"]
    for example in examples:
        msgspec.convert(example, schema.Record)


def test_a_field_that_the_docs_lack_is_noticed() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(
            b'{"record":"ended","version":1,"exit_status":0,"findings":0,"interrupted":false}', type=schema.Record
        )


def test_a_campaign_is_told_in_its_order(events: Events) -> None:
    told = lines(events("token_to_req_indices", "variant:host_count"), Ending(1))
    assert [type(record) for record in told] == [
        schema.StartedRecord,
        schema.FindingRecord,
        schema.FinishedRecord,
        schema.EndedRecord,
    ]
    finding = told[1]
    assert isinstance(finding, schema.FindingRecord)
    assert (finding.verdict, finding.cause) == ("divergence", "stale_host_value")
    assert finding.difference is not None
    assert (finding.difference.expected, finding.difference.actual) == (
        schema.Array("int32", [1], [1]),
        schema.Array("int32", [1], [0]),
    )
    assert (finding.difference.differing, finding.difference.indices) == (1, [[0]])
    assert finding.inputs[1]["qsl"] == schema.Array("int32", [3], [0, 0, 1])
    assert finding.blame is not None
    assert finding.blame.text == "buf[int(qsl_cpu[-1]) :].zero_()"


def test_what_json_has_no_number_for_is_text(finding: Callable[..., Found]) -> None:
    found = finding()
    left = np.array([[np.nan, 1.5], [np.inf, -np.inf]])
    mismatch = Mismatch("capture", "output", "eager", "capture", left, np.zeros((2, 2)))
    outcome = replace(found.finding.outcome, mismatch=mismatch)
    (record,) = lines([replace(found, finding=replace(found.finding, outcome=outcome))])
    assert isinstance(record, schema.FindingRecord)
    assert record.difference is not None
    assert isinstance(record.difference.expected, schema.Array)
    assert record.difference.expected.values == [["nan", 1.5], ["inf", "-inf"]]


def test_a_file_name_that_is_no_text_is_no_error(finding: Callable[..., Found]) -> None:
    found = replace(finding(), path=Path("corpus/\udcff.json"))
    (record,) = lines([found])
    assert isinstance(record, schema.FindingRecord)
    assert record.entry == "corpus/\\udcff.json"


def test_progress_is_not_said_too_often() -> None:
    started = Started("fold_indptr", "shipped", "sim", "hypothesis", 1, None, None)
    told = lines([started, *(Progress(n, n / 4, 0) for n in range(100)), Finished(100, 25.0, 0)])
    assert [record.seconds for record in told if isinstance(record, schema.ProgressRecord)] == [10.0, 20.0]


def test_standard_output_has_records_and_nothing_else(capfuzz: Run, work: Path) -> None:
    (work / "mine.py").write_text(
        "print('I am imported')\nfrom capfuzz.targets.fold_indptr import fold_indptr as good, scalar_store as bad\n"
    )
    result = capfuzz("run", "fold_indptr", "lens_to_indptr", "--json", "--max-examples", 30, "--seed", 1, "--stats")
    assert result.code == 0
    records = [msgspec.json.decode(line, type=schema.Record) for line in result.out.splitlines()]
    assert [type(record).__struct_config__.tag for record in records] == [*("started", "finished") * 2, "ended"]
    finished = records[1]
    assert isinstance(finished, schema.FinishedRecord)
    assert finished.drawn is not None
    assert sum(count for _, count in finished.drawn["dtype"]) == 30
    assert finished.never_together

    found = capfuzz("run", "fold_indptr", "--impl", "mine:bad", "--json", "--max-examples", 30, "--seed", 1)
    assert found.code == 1
    records = [msgspec.json.decode(line, type=schema.Record) for line in found.out.splitlines()]
    assert "I am imported" in found.err
    assert isinstance(records[-1], schema.EndedRecord)
    assert (records[-1].exit_status, records[-1].findings) == (1, 1)
    (entry,) = [record.entry for record in records if isinstance(record, schema.FindingRecord)]
    assert entry is not None
    assert (work / entry).exists()


def test_each_line_is_there_as_soon_as_it_is_known(work: Path) -> None:
    command = [sys.executable, "-m", "capfuzz", "run", "fold_indptr", "--json", "--max-time", "20"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, cwd=work, env=buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        first = msgspec.json.decode(running.stdout.readline(), type=schema.Record)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    rest = [msgspec.json.decode(line, type=schema.Record) for line in out.splitlines()]
    assert isinstance(first, schema.StartedRecord)
    # Where Ctrl-C meets code that Python runs from a string, Python ends itself by the signal; to a shell that is 130 too.
    assert running.returncode in (130, -signal.SIGINT), err.decode()
    last = rest[-1]
    assert isinstance(last, schema.EndedRecord)
    assert (last.exit_status, last.interrupted) == (130, True)


def test_bad_input_prints_no_record(capfuzz: Run) -> None:
    result = capfuzz("run", "nothing", "--json")
    assert (result.code, result.out) == (2, "")
    assert "no target named 'nothing'" in result.err
