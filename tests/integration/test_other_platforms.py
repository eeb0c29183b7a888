"""What reads captures runs where only standard Python is: without the modules and calls that Linux adds.

Python on Windows lacks these names, and Python on a Mac some of them. A child process loses them before memprof is
imported, and then runs the commands.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from integration.command import Command
from oom_logs import POSTED

from tests.unit.sources.test_importing import GPU, proto_of, training_step
from tests.unit.sources.test_memory_profiles import made, written

pytestmark = pytest.mark.with_one_jax

_WITHOUT = """
import os, signal, socket, subprocess, sys, tempfile  # the standard library asks what there is when it is imported
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_TMPFILE", "chown", "fchmod", "fchown", "fork",
             "getegid", "geteuid", "getgid", "getpgid", "getuid", "killpg", "mkfifo", "sched_getaffinity", "setsid",
             "statvfs", "uname", "wait3", "waitid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP",
             "SIGUSR1", "SIGUSR2", "SIGWINCH", "pthread_sigmask", "sigwait", "setitimer"):
    if hasattr(signal, name):
        delattr(signal, name)
del socket.AF_UNIX

import json
from pathlib import Path

def only_closed(rename):  # Windows gives no name to an open file
    def checked(source, *others, **options):
        opened = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
        if os.path.realpath(source) in opened:
            raise PermissionError(13, "the file is open", str(source))
        return rename(source, *others, **options)
    return checked
os.replace, os.link = only_closed(os.replace), only_closed(os.link)
open_file = os.open
def open_no_folder(path, *others, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return open_file(path, *others, **options)
os.open = open_no_folder
exists = Path.exists
Path.exists = lambda self, **options: not str(self).startswith("/proc") and exists(self, **options)
from memprof.profiler_cli import command_line
for number, arguments in enumerate(json.loads(sys.argv[1])):
    sys.argv = ["memprof", *arguments]
    code = command_line._run()
    print(f"{arguments}: {code}", flush=True)
"""


def test_captures_dumps_logs_and_profiles_are_read_without_linux(memprof: Command, capture_path: Path) -> None:
    folder = memprof.folder
    (folder / "dump").mkdir()
    (folder / "dump" / GPU).write_bytes(proto_of(training_step()))
    (folder / "LOG").write_text(next(iter(POSTED.values())).text, encoding="utf-8")
    written(folder / "memory.prof", made())
    capture = os.path.relpath(capture_path, folder)
    commands = [
        ["show", capture],
        ["show", capture, "-o", "report.html"],
        ["show", capture, "--why", "dot_general", "--format", "json", "-o", "why.json"],
        ["show", capture, "--diff", capture, "-o", "diff.md"],
        ["compare", capture, capture, "-o", "comparison.csv"],
        ["advise", capture, "-o", "advice.json"],
        ["import", "dump"],
        ["explain", "LOG", "--program", "dump"],
        ["import", "memory.prof"],
        ["list", "targets"],
    ]
    ended = memprof(json.dumps(commands), program=(sys.executable, "-c", _WITHOUT))
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if line.startswith("['")] == [
        f"{arguments}: 0" for arguments in commands
    ], ended.stderr
