"""`memprof explain` reads logs from files, pipes and gzip, and rejects what it cannot read in one sentence."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest
from made_compiles import Commands

LOG = b"step 1\n\xff\xfe RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12345 bytes.\n"


@pytest.fixture
def memprof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    return Commands(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("content", [LOG, gzip.compress(LOG)], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_a_log_is_read_from_a_file_or_a_pipe_also_gzipped(
    memprof: Commands, tmp_path: Path, content: bytes, kind: str
) -> None:
    path = tmp_path / "run.log"
    if kind == "fifo":
        os.mkfifo(path)
        threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    else:
        path.write_bytes(content)
    ended = memprof("explain", "run.log", "--format", "json")
    assert ended.code == 0
    assert '"asked_bytes": 12345' in ended.stdout


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.2.3 bytes.", "in a form that memprof does not"),
        (b"Out of memory while trying to allocate " + b"9" * 400 + b" bytes.", "in a form that memprof does not know"),
        (gzip.compress(LOG * 100)[:-12], "cannot read the log run.log"),
        (b"\x1f\x8b\x08\x00garbage", "cannot read the log run.log"),
        (b"\x1f\x8b", "cannot read the log run.log"),
        (b"\n" * 100_000, "the log has no out-of-memory error"),
    ],
)
def test_a_log_that_cannot_be_read_is_rejected_in_one_sentence(
    memprof: Commands, tmp_path: Path, content: bytes, fragment: str
) -> None:
    (tmp_path / "run.log").write_bytes(content)
    ended = memprof("explain", "run.log")
    assert ended.code == 2
    assert fragment in ended.stderr
    assert ended.stderr.startswith("memprof: ")
    assert ended.stderr.count("\n") == 1
