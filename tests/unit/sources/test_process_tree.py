"""What a killed command has left is found, also when it has only just started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from memprof.sources.jax.processes import process_tree


def test_a_process_that_has_just_started_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment reads as empty until its program is loaded: at once after the start about one time in ten."""
    for _ in range(100):
        started = subprocess.Popen(["sleep", "60"], env={"TMPDIR": str(tmp_path)})
        monkeypatch.setattr(os, "listdir", lambda _, pid=started.pid: [str(pid)])  # nothing comes before it
        process_tree.end_all_of(tmp_path)
        try:
            assert started.wait(10) == -signal.SIGKILL
        finally:
            started.kill()
            started.wait()


def test_a_process_without_an_environment_is_nobodys_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["cat"], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        started.stdin.write(b"its program is loaded")
        assert started.stdout.read(1) == b"i"
        monkeypatch.setattr(os, "listdir", lambda _: [str(started.pid)])
        monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it is waited for"))
        process_tree.end_all_of(tmp_path)
        assert started.poll() is None
        started.stdin.close()
