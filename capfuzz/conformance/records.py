"""Records: what a GPU did with each idiom, as data, with the device, the versions and the date."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from capfuzz.conformance.protocol import Measurement


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One idiom's measurement, with the code that was measured."""

    source: str
    measurement: Measurement


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of the suite on one machine."""

    device: str
    torch: str
    date: str
    idioms: dict[str, Recorded]


def read(path: Path) -> Record:
    return msgspec.json.decode(path.read_bytes(), type=Record)


def shipped() -> list[Record]:
    """The records that come with the package, by file name."""
    folder = resources.files("capfuzz.conformance") / "records"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return [msgspec.json.decode(file.read_bytes(), type=Record) for file in files]


def nearest(found: list[Record], version: str) -> Record:
    """The record whose torch is nearest to `version`: PyTorch changes what synchronises. Of two as near, the newer one."""

    def distance(record: Record) -> tuple[int, int]:
        theirs, ours = _minor(record.torch), _minor(version)
        return abs(theirs - ours), -theirs

    return min(found, key=distance)


def _minor(version: str) -> int:
    """Releases of torch are counted by their second number: 2.11, 2.12."""
    major, minor = version.split(".")[:2]
    return 1000 * int(major) + int(minor)


def merged(old: Record, new: Record) -> Record:
    """`old` with the idioms of `new` in their place. Raises `ValueError` for records of two machines."""
    if (old.device, old.torch) != (new.device, new.torch):
        raise ValueError(f"the record there is of {old.device}, torch {old.torch}, this one of {new.device}, torch {new.torch}")
    return Record(new.device, new.torch, new.date, {**old.idioms, **new.idioms})


def write(record: Record, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
