"""Where a report is written: what is wrong is said before the run, and nothing is ever half written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from capfuzz.reports import ReportError, ReportFile


def test_a_report_replaces_what_lay_there(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with path.open() as reader:
        ReportFile(path).write(b"new")
        assert reader.read() == "old", "whoever reads it meanwhile has the whole of one or the other"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["report.html"]


def test_looking_leaves_nothing(tmp_path: Path) -> None:
    ReportFile(tmp_path / "report.html")
    assert os.listdir(tmp_path) == []


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    ReportFile(tmp_path / "link").write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_relative_path_is_meant_from_where_the_run_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = ReportFile(Path("report.html"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    file.write(b"x")
    assert (tmp_path / "report.html").exists()


def test_what_cannot_be_a_report_is_known_before(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    wrong = {
        tmp_path: "is a directory",
        tmp_path / "fifo": "is not a regular file",
        Path("/dev/null"): "is not a regular file",
        tmp_path / "no" / "x.html": f"there is no directory {tmp_path / 'no'}",
        tmp_path / "file" / "x.html": "is not a directory",
        tmp_path / ("x" * 300): "File name too long",
        Path("/proc/x.html"): "cannot be written",
    }
    for path, why in wrong.items():
        with pytest.raises(ReportError, match=why) as raised:
            ReportFile(path)
        assert str(raised.value).startswith(f"{path}: ")
        assert len(str(raised.value).splitlines()) == 1


def test_a_file_that_its_owner_protects_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.html"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anything
    with pytest.raises(ReportError, match="is read-only"):
        ReportFile(path)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    file = ReportFile(path)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ReportError, match="cannot be written: No space left on device"):
        file.write(b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_directory_that_has_gone_is_an_error_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    file = ReportFile(tmp_path / "gone" / "x.html")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ReportError, match="cannot be written: No such file"):
        file.write(b"x")
