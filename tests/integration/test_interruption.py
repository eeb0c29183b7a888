"""However a run ends, nothing stays behind: no process, no temporary file, no half of a capture."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress

import pytest
from integration.command import parent_of, wait_until, without_progress

pytestmark = [pytest.mark.usefixtures("no_cached_plans"), pytest.mark.with_one_jax]

# Long enough to be caught in the middle; on a GPU target the compiler starts processes and writes temporary files.
LONG = ("run", "transformer", "--preset", "tiny", "--set", "num_layers=6", "--target", "h100-80gb")
# Of few kernels, so that the assembler is soon at work; it is started for one after the other.
ASSEMBLED = (
    *("run", "transformer", "--preset", "tiny", "--set", "num_layers=1", "--set", "dropout_rate=0"),
    *("--target", "h100-80gb", "--complete"),
)
SHORT = ("run", "mlp", "--preset", "tiny", "--target", "cpu")


def is_compiling(memprof) -> bool:
    """Whether XLA is at work: it has begun to write its dump."""
    with suppress(FileNotFoundError):  # a folder that goes while it is looked through (up to Python 3.12)
        return any(memprof.temp_folder.glob("memprof-*/dump/*"))
    return False


def is_assembling(memprof) -> bool:
    """Whether the compiler has started the assembler, a process of its own."""
    return any("ptxas" in arguments[0] for _, arguments in memprof.processes())


def is_starting(memprof) -> bool:
    """Whether there is a child process at all."""
    return memprof.compiling_process() is not None


def until(moment) -> tuple[str, ...]:
    """A command that has that moment: XLA assembles what it has planned, and goes so far where it is asked to."""
    return ASSEMBLED if moment is is_assembling else LONG


def assert_nothing_left(memprof) -> None:
    assert memprof.processes() == []
    assert memprof.left_behind() == []
    assert list(memprof.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("signal_number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
@pytest.mark.parametrize("moment", [is_starting, is_compiling, is_assembling])
@pytest.mark.slow_cases
def test_an_interrupted_run_leaves_nothing(memprof, start, signal_number, exit_code, moment):
    running = start(*until(moment))
    wait_until(lambda: moment(memprof))
    running.send_signal(signal_number)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (exit_code, "")
    assert without_progress(stderr) == "memprof: interrupted.\n"
    assert_nothing_left(memprof)


@pytest.mark.parametrize("verb", [("plan", "--memory", "1KiB"), ("advise",)], ids=lambda verb: verb[0])
@pytest.mark.slow_cases
def test_an_interrupted_search_leaves_nothing(memprof, start, verb):
    """The user's code is traced in the command's own process."""
    running = start(*verb, *LONG[1:])
    wait_until(lambda: is_compiling(memprof))
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (130, "")
    assert without_progress(stderr) == "memprof: interrupted.\n"
    assert_nothing_left(memprof)


@pytest.mark.slow
def test_an_interrupted_search_for_advice_prints_what_was_compiled(memprof, start):
    advise = ("advise", "transformer", "--preset", "tiny", "--set", "num_layers=2", "--target", "cpu")
    running = start(*advise, MEMPROF_JOBS="1")
    compiled = (line for line in running.stderr if ": done" in line)
    next(compiled), next(compiled)  # the numbers of the first one are compared before the second one is waited for
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Possible changes" in stdout
    assert stderr.endswith("; the same command begins where this one ended\nmemprof: interrupted.\n")
    assert memprof.processes() == []


@pytest.mark.slow
def test_an_interrupted_plan_prints_what_was_compiled(memprof, start):
    running = start(
        *("plan", "transformer", "--preset", "tiny", "--set", "num_layers=2", "--target", "cpu", "--memory", "1KiB")
    )
    next(line for line in running.stderr if "3: chosen" in line)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert stdout.startswith("No compile is within the budget: the smallest takes ")
    assert {"as it is", "nothing kept"} <= {*re.split(r"  +|\n", stdout)}
    assert stderr.endswith("; the same command begins where this one ended\nmemprof: interrupted.\n")
    assert memprof.processes() == []


SWALLOWING = """
import pathlib, time
try:
    pathlib.Path(__file__).with_suffix(".started").touch()
    time.sleep(60)
except BaseException:
    raise ImportError("initialization failed") from None
"""


def test_code_that_turns_an_interruption_into_an_error_is_interrupted_all_the_same(memprof, start):
    """Extension modules do that while they are imported."""
    (memprof.folder / "train.py").write_text(SWALLOWING)
    running = start("advise", "train.py", "--target", "cpu")
    wait_until((memprof.folder / "train.started").exists)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (130, "")
    assert without_progress(stderr) == "memprof: interrupted.\n"
    assert memprof.processes() == []


DROPPING = """
import os, signal, time
import jax.numpy as jnp
import memprof

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

def step(x):
    Deleted()
    while True:
        time.sleep(0.1)

step_spec = memprof.StepSpec(step, (jnp.ones(3),))
"""


@pytest.mark.slow
def test_an_interruption_that_python_drops_is_repeated(memprof, start):
    """Python drops an exception that is raised while an object is deleted; tracing deletes many."""
    (memprof.folder / "train.py").write_text(DROPPING)
    running = start("plan", "train.py:step_spec", "--target", "cpu", "--memory", "1KiB")
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 143
    assert without_progress(stderr).endswith("memprof: interrupted.\n")
    assert memprof.processes() == []


def test_an_impatient_user_does_not_cut_the_cleaning_short(memprof, start):
    running = start(*LONG)
    wait_until(lambda: is_compiling(memprof))
    for _ in range(20):
        running.send_signal(signal.SIGINT)
        time.sleep(0.005)
    _, stderr = running.communicate(timeout=60)
    assert (running.returncode, without_progress(stderr)) == (130, "memprof: interrupted.\n")
    assert_nothing_left(memprof)


@pytest.mark.parametrize("moment", [is_starting, is_compiling, is_assembling])
@pytest.mark.slow_cases
def test_when_the_command_is_killed_its_child_ends_by_itself(memprof, start, moment):
    running = start(*until(moment))
    wait_until(lambda: moment(memprof))
    running.kill()
    running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL
    wait_until(lambda: not memprof.processes(), seconds=60)
    assert_nothing_left(memprof)


@pytest.mark.slow
def test_what_is_left_when_all_are_killed_goes_with_the_next_command(memprof, start):
    running = start(*LONG)
    wait_until(lambda: is_starting(memprof))
    supervisor = parent_of(memprof.compiling_process())
    os.kill(running.pid, signal.SIGSTOP)  # else one of them would clean up before it is its turn
    for pid in (parent_of(supervisor), supervisor, running.pid):
        os.kill(pid, signal.SIGKILL)
    running.communicate(timeout=60)
    wait_until(lambda: not memprof.processes(), seconds=60)
    assert memprof.left_behind() != []
    assert memprof(*SHORT, "--no-save").returncode == 0
    assert_nothing_left(memprof)


@pytest.mark.slow
def test_when_the_compiler_crashes_its_last_lines_are_shown(memprof, start):
    running = start(*LONG, PYTHONFAULTHANDLER="1")
    wait_until(lambda: is_compiling(memprof))
    os.kill(memprof.compiling_process(), signal.SIGSEGV)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (3, "")
    assert "most recent call first" in stderr  # of the traceback that Python writes when it crashes
    assert stderr.splitlines()[-1] == ("memprof: The compiling process was killed by SIGSEGV while it was compiling.")
    assert len(without_progress(stderr).splitlines()) <= 21
    assert_nothing_left(memprof)


def test_when_the_compiler_is_killed_there_is_one_sentence(memprof, start):
    running = start(*LONG)
    wait_until(lambda: is_starting(memprof))
    os.kill(memprof.compiling_process(), signal.SIGKILL)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (3, "")
    said = without_progress(stderr)
    assert said.startswith("memprof: The compiling process was killed by SIGKILL (out of host memory, perhaps)")
    assert said.count("\n") == 1
    assert_nothing_left(memprof)


@pytest.mark.slow
def test_an_interrupted_run_leaves_an_old_capture_alone(memprof, start):
    path = memprof.folder / "old.memprof"
    path.write_text("old")
    running = start(*LONG, "-o", path, "--force")
    wait_until(lambda: is_compiling(memprof))
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert path.read_text() == "old"


@pytest.mark.slow
def test_several_runs_at_once_do_not_get_in_each_others_way(memprof, start):
    runs = [start(*SHORT, "-o", f"{number}.memprof") for number in range(3)]
    outputs = [running.communicate(timeout=300) for running in runs]
    assert [running.returncode for running in runs] == [0, 0, 0]
    assert all("mlp" in stdout for stdout, _ in outputs)
    assert sorted(path.name for path in memprof.folder.iterdir()) == ["0.memprof", "1.memprof", "2.memprof"]
    assert memprof.left_behind() == []


def test_an_interrupted_fit_keeps_what_was_compiled(memprof, start):
    fit = ("fit", "mlp", "--preset", "tiny", "--set", "batch_size=256", "--target", "cpu", "--memory", "60KiB")
    running = start(*fit, "--techniques", "auto", "--jobs", "2", "-o", "kept")
    wait_until(lambda: len(list(memprof.folder.glob("kept/*.memprof"))) >= 2)  # the plain step and one combination
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) == 130
    assert memprof.processes() == []
    assert memprof.left_behind() == []
    (kept, *_) = sorted(memprof.folder.glob("kept/*.memprof"))
    assert memprof("show", kept).returncode == 0
