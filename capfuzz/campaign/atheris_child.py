"""The process that atheris owns: it draws bytes, Hypothesis turns them into cases, failing cases go up the pipe."""

from __future__ import annotations

import inspect
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from capfuzz.campaign.hypothesis_engine import UNLIMITED, nothing_written, property_of
from capfuzz.devices import open_device
from capfuzz.findings import signature
from capfuzz.targets import Case, Subject
from capfuzz.targets.judge import judge
from capfuzz.targets.subjects import subject_from_label

MAX_BYTES = 256
FIRST_INPUTS = 64
REPORT_SECONDS = 0.25


class Reporter:
    """Writes to the pipe: counts from time to time, each fault once, the axes covered at the end."""

    def __init__(self, pipe: int, subject: Subject) -> None:
        self._file = os.fdopen(pipe, "w")
        self._subject = subject
        self._known: set[str] = set()
        self._last = time.monotonic()
        self._covered: dict[str, set[int | str]] = {}
        self._lock = threading.Lock()
        self.cases = 0

    def ran(self, case: Case) -> None:
        self.cases += 1
        self._covered.setdefault("batch", set()).add(self._subject.target.batch(case))
        for name, value in case.values.items():
            self._covered.setdefault(name, set()).add(value)
        if time.monotonic() - self._last >= REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._last = time.monotonic()
        self._say({"cases": self.cases})
        self._say({"coverage": {name: list(values) for name, values in self._covered.items()}})

    def fault(self, key: str, case: Case) -> None:
        if key not in self._known:
            self._known.add(key)
            self._say({"case": msgspec.to_builtins(case)})

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(message) + "\n")
            self._file.flush()


def main(spec: dict[str, Any]) -> None:
    import atheris

    subject = subject_from_label(spec["target"], spec["implementation"])
    instrument(atheris.instrument_func, subject.function)
    reporter = Reporter(spec["pipe"], subject)
    with open_device(spec["device"]) as device, nothing_written():
        target = subject.target

        def body(case: Case) -> None:
            outcome = judge(device, subject, case)
            reporter.ran(case)
            if outcome.is_fault:
                reporter.fault(signature(target.name, outcome), case)

        test: Any = property_of(target.strategy(), body, UNLIMITED, spec["seed"])
        fuzz_one_input = test.hypothesis.fuzz_one_input
        deadline = spec["deadline"]
        limit = spec["max_examples"]

        def one_input(data: bytes) -> None:
            spent = deadline is not None and time.time() >= deadline
            if spent or (limit is not None and reporter.cases >= limit):
                reporter.flush()
                os._exit(0)  # atheris would do the same, at a moment of its own choosing
            fuzz_one_input(data)

        atheris.Setup([sys.argv[0], *arguments(spec)], one_input)
        atheris.Fuzz()


def arguments(spec: dict[str, Any]) -> list[str]:
    """libFuzzer's own flags. Inputs do not start tiny: a short one ends before Hypothesis has drawn a whole case."""
    directory = Path(spec["corpus"])
    if not any(directory.iterdir()):
        source = random.Random(spec["seed"])
        for number in range(FIRST_INPUTS):
            (directory / f"first-{number:02d}").write_bytes(source.randbytes(MAX_BYTES // 2))
    return [
        str(directory),
        f"-seed={spec['seed'] % (2**31 - 1) + 1}",
        f"-max_len={MAX_BYTES}",
        "-len_control=0",
        "-rss_limit_mb=0",
    ]


def instrument(instrument_func: Callable[[Any], Any], function: Any) -> None:
    """Adds coverage to the implementation and to the functions beside it in its module, which it may call."""
    module = inspect.getmodule(function)
    for value in list(vars(module).values()) if module is not None else [function]:
        if inspect.isfunction(value) and value.__module__ == function.__module__:
            instrument_func(value)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
