"""The corpus: findings on disk, one JSON entry a file, replayed for ever."""

from capfuzz.corpus.care import misnamed, recorded_signature, size_of, upgraded
from capfuzz.corpus.entry import SCHEMA_VERSION, CorpusError, Entry, Expect, from_finding, load
from capfuzz.corpus.replay import Replayed, Status, replay
from capfuzz.corpus.store import find_entries, overwrite, remove, save

__all__ = [
    "SCHEMA_VERSION",
    "CorpusError",
    "Entry",
    "Expect",
    "Replayed",
    "Status",
    "find_entries",
    "from_finding",
    "load",
    "misnamed",
    "overwrite",
    "recorded_signature",
    "remove",
    "replay",
    "save",
    "size_of",
    "upgraded",
]
