"""The file that a report goes to: looked at before the run begins, written atomically at its end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class ReportError(ValueError):
    """A report that cannot be written: which file, and why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


class ReportFile:
    """A path that a report can be written to, as far as that can be known now. Raises `ReportError`.

    A file that is there already is replaced when the report is written, whole. A link is followed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.real = Path(os.path.realpath(path))  # also: a function under test may change the working directory
        try:
            if self.real.is_dir():
                raise ReportError(path, "is a directory; give the name of a file")
            if self.real.exists() and not self.real.is_file():
                raise ReportError(path, "is not a regular file, and a report replaces its file")
            if self.real.exists() and not os.access(self.real, os.W_OK):
                raise ReportError(path, "is read-only")
            if not self.real.parent.exists():
                raise ReportError(path, f"there is no directory {path.parent}")
            if not self.real.parent.is_dir():
                raise ReportError(path, f"{path.parent} is not a directory")
            os.unlink(self._temporary()[1])
        except OSError as error:
            raise self._failed(error) from error

    def write(self, data: bytes) -> None:
        """All of it or, if that raises `ReportError`, nothing: what lay there before is still there."""
        try:
            handle, temporary = self._temporary()
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.chmod(temporary, 0o644)
                os.replace(temporary, self.real)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise self._failed(error) from error

    def _temporary(self) -> tuple[int, str]:
        return tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.real.parent)

    def _failed(self, error: OSError) -> ReportError:
        return ReportError(self.path, f"cannot be written: {error.strerror or error}")
