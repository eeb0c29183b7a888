"""The process that watches another one: whatever that does, it ends with all that it has started, and is told of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.command import parent_of, wait_until

from memprof.sources.jax.processes.task import Message, decoded

_PROGRAM = """
import os, sys
from pathlib import Path
from memprof.sources.jax.processes.supervisor import fork_worker
pipe = fork_worker(Path(sys.argv[1]))
def say(text):
    os.write(pipe, text.encode() + b"\\n")
try:
    exec(sys.argv[2])
finally:
    os._exit(0)
"""
# What it leaves writes where it was told to for as long as it lives, and has left its group, session and environment.
_LEAVES_ANOTHER = """
import subprocess
code = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    while True: time.sleep(60)"
subprocess.run([sys.executable, "-c", code, "MARK"], env={}, start_new_session=True)
"""


class Supervised:
    """A supervisor with a worker that executes some code. Its `mark` is in the arguments of all its processes."""

    def __init__(self, folder: Path, code: str) -> None:
        self.folder = folder
        self.mark = str(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(folder), code.replace("MARK", self.mark)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def ended(self) -> Message:
        """What the supervisor says when the worker has ended."""
        return decoded(list(self.lines())[-1], Message)

    def lines(self) -> Iterator[str]:
        """What it says, up to that."""
        for line in self.stdout:
            yield line.decode().rstrip("\n")
            if b'"ended"' in line:
                return

    def processes(self) -> list[int]:
        """All that are still there."""
        found = []
        for folder in Path("/proc").iterdir():
            try:
                is_one = folder.name.isdecimal() and self.mark.encode() in (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if is_one:
                found.append(int(folder.name))
        return found

    def worker(self) -> int:
        """The process that does the work."""
        wait_until(lambda: any(parent_of(pid) == self.process.pid for pid in self.processes()), seconds=30)
        return next(pid for pid in self.processes() if parent_of(pid) == self.process.pid)


@pytest.fixture
def supervised(tmp_path: Path):
    folder = tmp_path / "work"
    folder.mkdir()
    started: list[Supervised] = []

    def start(code: str) -> Supervised:
        started.append(Supervised(folder, code))
        return started[-1]

    yield start
    for each in started:
        each.stdin.close()
        each.process.wait(timeout=30)
        each.stdout.close()
        assert each.processes() == []
        assert not folder.exists()


@pytest.mark.parametrize(
    ("code", "exit_code", "printed"),
    [
        ("", 0, ""),
        ("os._exit(7)", 7, ""),
        ("os.kill(os.getpid(), 9)", -9, ""),
        ("os.killpg(0, 9)", -9, ""),
        ("os.kill(os.getpid(), 40)", -40, ""),
        ("import signal; os.kill(os.getpid(), signal.SIGSTOP); os._exit(4)", 4, ""),
        ("import signal; os.killpg(0, signal.SIGSTOP); os._exit(4)", 4, ""),
        (
            "print('one'); print('two', file=sys.stderr, flush=True); sys.stdout.flush()",
            0,
            ("two\none\n", "one\ntwo\n"),
        ),
        ("os.write(1, b'x' * 2**20 + b'end')", 0, ("x" * (2**16 - 3) + "end",)),
        ("os.write(1, bytes([255, 10]))", 0, ("\ufffd\n",)),
        ("os._exit(len(sys.stdin.read()))", 0, ""),
        ("os.closerange(0, 100)", 0, ""),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()", 0, ""),
        ("import atexit, time; atexit.register(time.sleep, 60)", 0, ""),
        ("if os.fork() == 0: import time; time.sleep(60)", 0, ""),
        ("if os.fork() == 0:\n    while True: os.write(1, b'')", 0, ""),
        (_LEAVES_ANOTHER, 0, ""),
        (f"{_LEAVES_ANOTHER}\nos.kill(os.getpid(), 11)", -11, ""),
    ],
)
def test_how_a_worker_ends_is_told_and_what_it_leaves_is_ended(supervised, code, exit_code, printed) -> None:
    running = supervised(code)
    ended = running.ended()
    assert ended.kind == "ended"
    assert int(ended.text) == exit_code
    assert ended.details in (printed or ("",))
    assert running.processes() == [running.process.pid]


def test_messages_are_handed_on_in_whole_lines(supervised) -> None:
    running = supervised("say('one'); os.write(pipe, b't'); say('wo'); say('y' * 300000); os.write(pipe, b'half')")
    *lines, _ = running.lines()
    assert lines == ["one", "two", "y" * 300000]


@pytest.mark.parametrize("who", ["command", "supervisor", "both", "worker"])
def test_whoever_is_killed_the_worker_ends(supervised, who) -> None:
    running = supervised("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)")
    worker = running.worker()
    if who in ("supervisor", "both"):
        running.process.kill()
    if who in ("command", "both"):
        running.stdin.close()
    if who == "worker":
        os.kill(worker, signal.SIGKILL)
        assert running.ended().text == "-9"
    else:
        wait_until(lambda: worker not in running.processes(), seconds=30)
    if who in ("supervisor", "both"):  # who removes the folder is tested with it
        running.folder.rmdir()
