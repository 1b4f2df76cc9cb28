"""Makes a record on this machine's GPU. Child processes measure; one that loses its device is replaced."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Iterable, Iterator

import msgspec
import torch

from capfuzz.conformance.protocol import Measurement, measure
from capfuzz.conformance.records import Record, Recorded
from capfuzz.conformance.suite import suite


def record(names: Iterable[str] | None = None) -> Record:
    """Measures every idiom (or those named) on the GPU.

    Raises RuntimeError without one: a record of anything else would prove nothing.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("recording needs a CUDA device, and torch.cuda.is_available() is False here")
    idioms = suite()
    # A family a process: what one leaves behind (memory cached for its streams, tables) is not there for the next.
    families: dict[str, list[str]] = {}
    for name in names or idioms:
        families.setdefault(idioms[name].family, []).append(name)
    measured = {name: result for family in families.values() for name, result in _measure_all(family)}
    return Record(
        device=torch.cuda.get_device_name(0),
        torch=str(torch.__version__),
        date=datetime.date.today().isoformat(),
        idioms={name: Recorded(idioms[name].source, result) for name, result in measured.items()},
    )


def _measure_all(names: list[str]) -> Iterator[tuple[str, Measurement]]:
    while names:
        command = [sys.executable, "-m", "capfuzz.conformance", "measure", *names]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stderr is not None
            done = 0
            for line in child.stdout:
                name, result = msgspec.json.decode(line, type=tuple[str, Measurement])
                yield name, result
                done += 1
            last_words = child.stderr.read().strip()[-300:]
        if child.returncode and done < len(names) and done == 0:
            yield names[0], Measurement("crash", f"exit status {child.returncode}: {last_words}")
            done = 1
        names = names[done:]


def measure_here(names: list[str]) -> None:
    """The child: prints one JSON line an idiom, and ends early when the device is lost."""
    idioms = suite()
    for name in names:
        result = measure(idioms[name])
        print(msgspec.json.encode((name, result)).decode(), flush=True)
        torch.zeros(1, device="cuda").item()
