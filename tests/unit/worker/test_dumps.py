"""A worker writes a dump only to a file that requests it."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.worker.dumps import answer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that requests a dump."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"aiozkqueue-dump-{os.geteuid()}-{os.getpid()}"


def test_a_dump_is_written_to_the_requested_file(asked: Path) -> None:
    asked.touch(0o600)
    answer("9 tasks\n")
    assert asked.read_bytes() == b"9 tasks\n\0"


def test_a_dump_creates_no_file_without_a_request(asked: Path) -> None:
    answer("9 tasks\n")
    assert list(asked.parent.iterdir()) == []


def test_a_dump_does_not_follow_a_symbolic_link(asked: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("untouched")
    asked.symlink_to(other)
    answer("9 tasks\n")
    assert other.read_text() == "untouched"


def test_a_dump_does_not_wait_for_the_reader_of_a_fifo(asked: Path) -> None:
    os.mkfifo(asked)
    answer("9 tasks\n")  # a signal handler that waits here would freeze the worker


def test_a_dump_does_not_write_to_a_hard_linked_file(asked: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("untouched")
    asked.hardlink_to(other)
    answer("9 tasks\n")
    assert other.read_text() == "untouched"
