"""Forks of a server in place of fresh processes: each like a fresh one, and whoever is killed, nothing is left."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from integration.command import parent_of, processes_with, wait_until

import memprof
from memprof.errors import WorkloadError
from memprof.sources.jax.processes import child_process, process_tree
from memprof.sources.jax.processes.forked_process import ForkedProcess, ForkServer
from memprof.sources.jax.processes.task import Message, Task, common_imports, decoded
from memprof.sources.jax.targets.resolve import cpu
from memprof.sources.jax.xla.portable_program import PlanTask
from memprof.workloads.build import plan
from memprof.workloads.user.build import UserStep
from memprof.workloads.user.reference import parse

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each child is a fresh process"),
    pytest.mark.with_one_jax,
]

# What the forks of these tests have in common, in place of JAX: their task is code to execute.
_STAND_IN = """
import json
from memprof.sources.jax import child
def work(line, work_folder, messages):
    messages.stage("working")
    say = lambda what: messages.result(child.Message(kind="done", text=json.dumps(what)))
    exec(json.loads(line), {"say": say, "messages": messages})
child._work = work
"""
_WITH_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
_KILLED_ONCE_IT_HAS_FORKED = """
import os, signal
server, fork = os.getpid(), os.fork
def fork_and_end():
    pid = fork()
    if os.getpid() == server:
        os.kill(server, signal.SIGKILL)
    return pid
os.fork = fork_and_end
"""
_SLEEP = "import time; time.sleep(600)"
# It has left its group, its session and its environment.
_LEAVE_ANOTHER = f"""
import subprocess, sys
code = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    time.sleep(600)"
subprocess.run([sys.executable, "-c", code, "LEFT"], env={{"TMPDIR": os.environ["TMPDIR"]}}, start_new_session=True)
{_SLEEP}
""".replace("import subprocess", "import os, subprocess")

_OWNER = """
import json, os, sys, time
from pathlib import Path
from memprof.sources.jax.processes.forked_process import SERVER
folder = Path(sys.argv[1])
environment = {**os.environ, "TMPDIR": str(folder)}
with (folder / "stderr").open("wb") as stderr:
    forked = SERVER.fork(folder, imports=["stand_in"], environment=environment, stderr=stderr)
forked.stdin.write(json.dumps(sys.argv[2]).encode() + b"\\n")
forked.stdin.flush()
"""

_FORK_THAT_EXITS = """
if os.fork() == 0:
    sys.exit()
os.wait()
(folder.parent / "exited").touch()
time.sleep(600)
"""


class Asking:
    """Asks a server of its own for forks."""

    def __init__(self, folder: Path) -> None:
        self.server = ForkServer()
        self.folder = folder

    def __call__(self, code: str, *, imports: tuple[str, ...] = ("stand_in",), **environment: str) -> ForkedProcess:
        """A fork that executes some code."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "stderr").open("wb") as stderr:
            forked = self.server.fork(
                self.folder,
                imports=imports,
                environment={**os.environ, "TMPDIR": str(self.folder), **environment},
                stderr=stderr,
            )
        assert forked is not None
        with suppress(BrokenPipeError):  # it has been refused already
            forked.stdin.write(json.dumps(code).encode() + b"\n")
            forked.stdin.flush()
        return forked

    @property
    def server_pid(self) -> int:
        """Its process."""
        assert self.server._process is not None
        return self.server._process.pid


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the module that forks have in common, and of all their temporary files."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "stand_in.py").write_text(_STAND_IN)
    (folder / "with_a_thread.py").write_text(_WITH_A_THREAD)
    (folder / "killed_once_it_has_forked.py").write_text(_KILLED_ONCE_IT_HAS_FORKED)
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, (str(folder), str(Path(memprof.__file__).parents[1]), inherited)))
    )
    return tmp_path


@pytest.fixture
def ask(stand_in: Path) -> Iterator[Asking]:
    asking = Asking(stand_in / "work")
    yield asking
    asking.server.end()


def answer(forked: ForkedProcess) -> object:
    """What the fork says; it ends then."""
    found = [decoded(line, Message) for line in _lines_to_the_end(forked)]
    end(forked)
    (said,) = [json.loads(message.text) for message in found if message.kind == "done"]
    return said


def ended(forked: ForkedProcess) -> Message:
    """How its worker has ended."""
    message = decoded(_lines_to_the_end(forked)[-1], Message)
    end(forked)
    return message


def end(forked: ForkedProcess) -> None:
    forked.stdin.close()
    assert forked.wait(timeout=30) == 0
    forked.close()


def _lines_to_the_end(forked: ForkedProcess) -> list[bytes]:
    found = []
    for line in forked.stdout:
        found.append(line)
        if b'"ended"' in line:
            break
    return found


def test_only_our_own_work_is_forked() -> None:
    own, users = plan(workload="mlp").recipe, UserStep(reference=parse("package.module:step"))
    assert "memprof.workloads.train_step" in common_imports(Task(recipe=own, target=None))
    assert common_imports(Task(recipe=users, target=None)) == ()
    assert common_imports(PlanTask(target=None, options={}, xla_flags="")) == ("memprof.sources.jax.compile",)


def test_jax_is_imported_before_the_first_fork_is_asked_for(ask: Asking, stand_in: Path) -> None:
    (stand_in / "modules" / "jax.py").write_text("")
    ask.server.prepare()
    server = ask.server_pid
    assert answer(ask("import sys; say('jax' in sys.modules)")) is True
    assert ask.server_pid == server


def test_a_fork_is_like_a_fresh_process(ask: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        import os, signal, sys, tempfile, warnings
        say({
            "folder": os.getcwd(), "temp": tempfile.gettempdir(), "chosen": os.environ.get("CHOSEN"),
            "of_the_server": os.environ.get("OPENBLAS_NUM_THREADS"), "is_leader": os.getsid(0) == os.getpid(),
            "open": len(os.listdir("/proc/self/fd")), "stdin": sys.stdin.read(), "warned": len(warnings.filters),
            "handler": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        })
    """
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    first = ask(_SLEEP)  # which runs on while there is another
    assert first.is_forked()
    gone = tmp_path / "gone"
    for folder in (tmp_path, gone):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        if folder == gone:
            gone.rmdir()
            code = code.replace("os.getcwd()", "os.readlink('/proc/self/cwd')")
        found = answer(ask(textwrap.dedent(code), TMPDIR=str(tmp_path / "work"), CHOSEN=str(folder)))
        assert isinstance(found, dict)
        assert found.pop("folder") == (str(folder) if folder.exists() else f"{gone} (deleted)")
        assert found.pop("chosen") == str(folder)
        assert found.pop("warned") > 0
        expected = {"temp": str(tmp_path / "work"), "of_the_server": None, "is_leader": True, "stdin": ""}
        # 0, 1, 2, the pipe for messages, and the listing itself
        assert found == {**expected, "open": 5, "handler": True}
    end(first)


@pytest.mark.parametrize(("code", "exit_code"), [("", 0), ("import os; os.kill(os.getpid(), 11)", -11), ("1 / 0", 1)])
def test_how_a_fork_ends_is_reported(ask: Asking, code: str, exit_code: int) -> None:
    message = ended(ask(code))
    assert int(message.text) == exit_code
    assert ("ZeroDivisionError" in message.details) == (code == "1 / 0")


def test_one_server_serves_until_what_processes_inherit_has_changed(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = []
    for name, value in [("COLUMNS", "1"), ("COLUMNS", "2"), ("XLA_FLAGS", ""), ("JAX_ENABLE_X64", "1")]:
        monkeypatch.setenv(name, value)
        assert answer(ask(f"import os; say(os.environ[{name!r}])")) == value
        pids.append(ask.server_pid)
    assert pids[0] == pids[1]
    assert len(set(pids[1:])) == 3
    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [False, False, False, True]


def test_a_server_of_several_threads_forks_nothing(ask: Asking) -> None:
    refused = ask("", imports=("stand_in", "with_a_thread"))
    assert not refused.is_forked()
    assert refused.stdout.read() == b""
    refused.close()


def test_a_fresh_process_does_what_cannot_be_forked(
    ask: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "common_imports", lambda task: ("not_installed",))
    monkeypatch.setattr(child_process, "SERVER", ask.server)
    stages: list[str] = []
    task = PlanTask(target=cpu(""), options={}, xla_flags="")
    with (
        child_process.ChildProcess.started(tmp_path, task, child_process.Children()) as child,
        pytest.raises(WorkloadError, match="No such file or directory"),  # for there is no program
    ):
        child.finish(stages.append, None)
    assert stages == ["importing"]


@pytest.mark.parametrize("imports", [("stand_in",), ("not_installed",)])
def test_without_a_server_there_is_no_fork(ask: Asking, imports: tuple[str, ...]) -> None:
    forked = ask(_SLEEP, imports=imports)
    if forked.is_forked():
        os.kill(ask.server_pid, signal.SIGKILL)
        assert b"working" in forked.stdout.readline()  # it goes on
        forked.stdin.close()
        assert forked.wait(timeout=30) == -signal.SIGKILL  # nobody knows better
    assert forked.stdout.read() == b""
    forked.close()
    with (ask.folder.parent / "stderr").open("wb") as stderr:
        assert ask.server.fork(ask.folder, imports=imports, environment=os.environ, stderr=stderr) is None


def test_a_fork_is_known_of_although_its_server_was_killed_at_once(ask: Asking) -> None:
    """Else a fresh process would do the same in the same folder, which the fork removes when it ends."""
    forked = ask(_SLEEP, imports=("stand_in", "killed_once_it_has_forked"))
    assert forked.is_forked()
    assert b"working" in forked.stdout.readline()
    forked.stdin.close()
    assert forked.wait(timeout=30) == -signal.SIGKILL  # only the server knows better
    forked.close()


def test_a_child_that_has_more_to_say_than_anybody_reads_ends_at_once(
    ask: Asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "common_imports", lambda task: ("stand_in",))
    line = json.dumps("messages.stage('x' * 2**20)").encode() + b"\n"
    monkeypatch.setattr(child_process, "encoded_task", lambda task: line)
    monkeypatch.setattr(child_process, "SERVER", ask.server)
    monkeypatch.setattr(ForkedProcess, "kill", lambda self: pytest.fail("it does not end"))
    task = PlanTask(target=cpu(""), options={}, xla_flags="")
    folder = tmp_path / "work"
    folder.mkdir()
    with child_process.ChildProcess.started(folder, task, child_process.Children()) as child:
        waiting = array.array("i", [0])

        def is_filled() -> bool:
            fcntl.ioctl(child._process.stdout, termios.FIONREAD, waiting)
            return 2 * waiting[0] > fcntl.fcntl(child._process.stdout, fcntl.F_GETPIPE_SZ)

        wait_until(is_filled, seconds=30)
    assert not folder.exists()


def test_a_child_of_those_that_have_ended_is_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "common_imports", lambda task: ())
    task, children = PlanTask(target=cpu(""), options={}, xla_flags=""), child_process.Children()
    children.end()
    with (
        child_process.ChildProcess.started(tmp_path, task, children) as child,
        pytest.raises(WorkloadError, match="ended with exit code 1 while it was starting"),
    ):
        child.finish(lambda stage: None, None)


def test_what_is_called_off_before_the_server_has_come_to_it_never_begins(ask: Asking, tmp_path: Path) -> None:
    (tmp_path / "modules" / "slow.py").write_text("import time; time.sleep(5)")
    forked = ask(f"open({str(tmp_path / 'begun')!r}, 'w')", imports=("stand_in", "slow"))
    server = ask.server_pid
    forked.stdin.close()
    forked.send_signal(signal.SIGCONT)
    assert forked.wait(timeout=30) == -signal.SIGKILL
    forked.close()
    assert not Path(f"/proc/{server}").exists()
    assert not (tmp_path / "begun").exists()


@pytest.fixture
def start_owner(stand_in: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process that asks for a fork; `then` is what it does after that."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str, then: str = _SLEEP) -> subprocess.Popen[bytes]:
        folder = stand_in / "work"
        folder.mkdir()
        environment = {**os.environ, "TMPDIR": str(stand_in)}
        started.append(subprocess.Popen([sys.executable, "-c", _OWNER + then, folder, code], env=environment))
        return started[-1]

    yield start
    for owner in started:
        owner.kill()
        owner.wait()
    wait_until(lambda: not processes_with(stand_in), seconds=60)


def family(owner: int, folder: Path) -> dict[str, int]:
    """The server, the supervisor and the worker, once there are all three."""
    found: list[int] = []

    def find() -> bool:
        found[:] = [owner]
        while children := [pid for pid in processes_with(folder) if parent_of(pid) == found[-1]]:
            found.append(children[0])
        return len(found) == 4

    wait_until(find, seconds=30)
    return dict(zip(("owner", "server", "supervisor", "worker"), found, strict=True))


@pytest.mark.parametrize(
    "killed",
    [
        ["owner"],
        ["server", "owner"],
        ["supervisor", "owner"],
        ["owner", "supervisor"],
        ["server", "supervisor", "owner"],
    ],
    ids="+".join,
)
def test_whoever_is_killed_all_end(start_owner, stand_in: Path, killed: list[str]) -> None:
    owner = start_owner(_LEAVE_ANOTHER)
    found = family(owner.pid, stand_in)
    wait_until(lambda: len(processes_with(stand_in)) == 5, seconds=30)
    for who in killed:
        with suppress(ProcessLookupError):  # it was quicker to end by itself
            os.kill(found[who], signal.SIGKILL)
    owner.wait()
    if {"supervisor", "server"} <= {*killed}:  # who would have ended what the worker started
        wait_until(lambda: len(processes_with(stand_in)) == 1, seconds=30)
        process_tree.end_all_of(stand_in / "work")  # as the next command does
    wait_until(lambda: not processes_with(stand_in), seconds=30)
    assert not (stand_in / "work").exists() or "supervisor" in killed  # whoever could clean up has done so


def descendants(ancestor: int) -> list[int]:
    """All that a process has started, and that those have."""
    children = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if parent_of(pid) == ancestor]
    return [*children, *(pid for child in children for pid in descendants(child))]


def test_a_supervisor_that_was_stopped_is_ended_by_the_next_command(start_owner, stand_in: Path) -> None:
    owner = start_owner(_SLEEP, f"forked.stdout.readline()\n(folder.parent / 'working').touch()\n{_SLEEP}")
    found = family(owner.pid, stand_in)
    wait_until((stand_in / "working").exists)  # a worker that has something to say wakes its supervisor
    os.kill(found["supervisor"], signal.SIGSTOP)
    for who in ("server", "owner"):
        os.kill(found[who], signal.SIGKILL)
    wait_until(lambda: len(processes_with(stand_in)) == 2, seconds=30)
    process_tree.end_all_of(stand_in / "work")
    wait_until(lambda: not processes_with(stand_in), seconds=30)
    assert (stand_in / "work").exists()  # it was killed where it stood, and did not go on to clean up


def test_a_supervisor_that_is_killed_is_reported_and_what_it_watched_is_ended(ask: Asking) -> None:
    forked = ask(_LEAVE_ANOTHER)
    wait_until(lambda: len(descendants(ask.server_pid)) == 3, seconds=30)
    forked.kill()
    assert forked.wait(timeout=30) == -signal.SIGKILL
    assert descendants(ask.server_pid) == []
    forked.close()


@pytest.mark.parametrize(
    "then",
    [
        "sys.exit()",
        "if os.fork() == 0: time.sleep(600)\nos._exit(0)",
        _FORK_THAT_EXITS,
        "os.execv('/bin/sleep', ['/bin/sleep', '600'])",
    ],
    ids=["exits", "forks and ends", "forks, and that one exits", "becomes another program"],
)
def test_the_server_ends_with_its_owner_alone(start_owner, stand_in: Path, then: str) -> None:
    owner = start_owner(_SLEEP, f"list(zip(range(1), forked.stdout))\n{then}")
    if then == _FORK_THAT_EXITS:  # it must not end the server that it knows of
        wait_until(lambda: (stand_in / "exited").exists(), seconds=30)
        assert len(family(owner.pid, stand_in)) == len(processes_with(stand_in)) == 4
        return
    wait_until(lambda: len(processes_with(stand_in)) == (0 if then == "sys.exit()" else 1), seconds=30)
    for pid in processes_with(stand_in):  # what the owner has forked, or become
        os.kill(pid, signal.SIGKILL)
