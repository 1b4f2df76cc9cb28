"""Where entries lie (`corpus/<target>/<signature>.json`) and how one is written.

Written atomically: a complete temporary file, then one `link` or `rename`. Two processes that find the same fault write the
same name; the first one wins and nothing is lost.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from capfuzz.corpus.entry import CorpusError, Entry


def entry_path(corpus: Path, target: str, signature: str) -> Path:
    return corpus / target / f"{signature}.json"


def encode(entry: Entry) -> bytes:
    """An entry as it lies on disk: indented, stable order, a newline at the end, so that it reviews well in a diff."""
    return msgspec.json.format(msgspec.json.encode(entry), indent=2) + b"\n"


def save(corpus: Path, signature: str, entry: Entry) -> tuple[Path, bool]:
    """Writes an entry unless the fault is already there. Returns its path and whether it is new. Raises `CorpusError`."""
    path = entry_path(corpus, entry.target, signature)
    try:
        if path.exists():
            return path, False
    except OSError as error:
        raise CorpusError(path, f"cannot be written: {error.strerror or error}") from error
    return path, _written(path, entry, _as_new)


def overwrite(path: Path, entry: Entry) -> None:
    """Puts another entry in the place of a file, or of what a link points to. Raises `CorpusError`."""
    _written(Path(os.path.realpath(path)), entry, _in_place)


def remove(path: Path) -> None:
    """Takes an entry away. Raises `CorpusError`."""
    try:
        path.unlink()
    except OSError as error:
        raise CorpusError(path, f"cannot be removed: {error.strerror or error}") from error


def _written(path: Path, entry: Entry, put: Callable[[str, Path], bool]) -> bool:
    """Writes the whole entry under a name that is none of an entry, and lets `put` give it its own. What that returns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode(entry))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            return put(temporary, path)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
    except OSError as error:
        raise CorpusError(path, f"cannot be written: {error.strerror or error}") from error


def _as_new(temporary: str, path: Path) -> bool:
    """Whether the file is new: the first of two processes wins."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        os.replace(temporary, path)
    return True


def _in_place(temporary: str, path: Path) -> bool:
    os.replace(temporary, path)
    return True


def find_entries(paths: Iterable[Path]) -> list[Path]:
    """Every entry file named by `paths`: a file stands for itself, a directory for the `.json` files below it, sorted."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.rglob("*.json") if not p.name.startswith("."))
        else:
            found.append(path)
    return list(dict.fromkeys(found))
