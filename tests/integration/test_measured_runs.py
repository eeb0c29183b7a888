"""Steps that run, for real, on the CPU: what is told of them, and what is left when they do not end well."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from integration.command import TELLING_OF_ITS_STEP, wait_until, without_progress

from memprof.sources.capture_file import read_capture

TINY = ("mlp", "--preset", "tiny", "--target", "cpu")
# For what an MLP has not: tokens, and random numbers in its step.
TRANSFORMER = ("transformer", "--preset", "tiny", "--target", "cpu", "--set", "num_layers=1")
# A temp block of some terabytes, which no machine has; the arguments are small.
HUGE = ("mlp", "--preset", "tiny", "--target", "cpu", "--set", "batch_size=131072", "--set", "hidden_size=524288")

DYING_WHILE_WRITING = """
import os, pathlib, signal, sys
if IS_CHILD:
    write_bytes = pathlib.Path.write_bytes
    def write_half(path, data):
        is_last = path.name == "step.msgpack"
        write_bytes(path, data[: len(data) // 2] if is_last else data)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
    pathlib.Path.write_bytes = write_half
"""
# It says so in its work folder when XLA is done, and stays there.
STAYING_WHERE_IT_HAS_COMPILED = """
import os, pathlib, time
if IS_CHILD:
    import memprof.sources.jax.processes.task
    decoded = memprof.sources.jax.processes.task.decoded_task
    def watched(line):
        import memprof.sources.jax.compile
        def stay(*_, **__):
            pathlib.Path(os.environ["TMPDIR"], "has_compiled").touch()
            time.sleep(600)
        memprof.sources.jax.compile.read_plan = stay
        return decoded(line)
    memprof.sources.jax.processes.task.decoded_task = watched
"""
DYING_WHILE_DONATING = """
import os, signal, sys
if IS_CHILD:
    import memprof.sources.jax.processes.task
    decoded = memprof.sources.jax.processes.task.decoded_task
    def watched(line):
        job = decoded(line)
        if "donate" in [each.label for each in job.recipe.techniques]:
            import memprof.sources.jax.running.run
            memprof.sources.jax.running.run.Arguments.take = lambda self, result: os.kill(os.getpid(), signal.SIGKILL)
        return job
    memprof.sources.jax.processes.task.decoded_task = watched
"""


@pytest.fixture
def memprof(memprof):
    return memprof.with_simple_kernels()


@pytest.mark.with_one_jax
def test_a_step_trains_and_is_measured_with_the_same_losses_each_time(memprof):
    ended = memprof("run", *TRANSFORMER, "--steps", "20", "--format", "json", "-o", "tiny.memprof")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    measured = report["measured"]
    assert (measured["num_steps"], measured["num_warmup_steps"], len(measured["losses"])) == (20, 2, 22)
    assert sum(measured["losses"][-5:]) < sum(measured["losses"][:5])
    assert measured["step_seconds_p10"] <= measured["step_seconds_median"] <= measured["step_seconds_p90"]
    assert measured["tokens_per_second"] == pytest.approx(64 / measured["step_seconds_median"])
    assert (measured["platform"], measured["pool"], measured["mfu"]) == ("cpu", None, None)
    assert measured["predicted_bytes"] == report["footprint_bytes"]
    assert measured["resident"]["argument_bytes"] > 0
    assert read_capture(memprof.folder / "tiny.memprof").measured.losses == tuple(measured["losses"])
    shown = memprof("show", "tiny.memprof", "--full")
    assert "Measured" in shown.stdout
    assert memprof.left_behind() == []
    again = memprof("run", *TRANSFORMER, "--steps", "2", "--no-save", "--format", "json")
    assert json.loads(again.stdout)["measured"]["losses"] == measured["losses"][:4]


@pytest.mark.slow
def test_the_device_that_is_here_is_taken_without_a_target(memprof):
    ended = memprof("run", "mlp", "--preset", "tiny", "--steps", "1", "--no-save", "--format", "json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["target"]["name"] in ("cpu", "local")
    assert report["measured"]["num_steps"] == 1


@pytest.mark.with_one_jax
def test_a_device_that_is_not_here_runs_nothing(memprof):
    for command in (["run", "mlp"], ["compare", "mlp"]):
        ended = memprof(*command, "--target", "h100-80gb", "--steps", "3")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == (
            "memprof: h100-80gb is a target to compile for, but a step runs only on a local device: use --target local"
            " or cpu, or leave out --steps.\n"
        )


@pytest.mark.slow
def test_every_row_of_a_comparison_is_measured(memprof):
    rows = ("-t", "baseline", "-t", "donate")
    ended = memprof(
        "compare", *TRANSFORMER, "--set", "dropout_rate=0", "--steps", "3", *rows, "--no-save", "--format", "csv"
    )
    assert ended.returncode == 0, ended.stderr
    titles, *rows = (line.split(",") for line in ended.stdout.splitlines())
    assert len(rows) == 2
    for row in rows:
        record = dict(zip(titles, row, strict=False))
        assert float(record["step_seconds_median"]) > 0
        assert float(record["tokens_per_second"]) > 0


@pytest.mark.skipif(
    Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1", reason="this system promises any memory"
)
class TestOutOfMemory:
    def test_a_step_that_runs_out_of_memory_is_a_result(self, memprof):
        ended = memprof("run", *HUGE, "--steps", "3", "--format", "json", "-o", "huge.memprof")
        assert ended.returncode == 4
        report = json.loads(ended.stdout)
        end = report["measured"]["out_of_memory"]
        assert end["doing"] == "running step 1 of 5"
        assert end["asked_bytes"] > 10**12
        # Nearly all of the footprint is the one block that the step asks for.
        assert 0.9 < end["asked_bytes"] / report["footprint_bytes"] <= 1
        assert report["measured"]["step_seconds_median"] is None
        assert read_capture(memprof.folder / "huge.memprof").measured.out_of_memory is not None
        assert ended.stderr.splitlines()[-1].startswith("memprof: mlp ran out of memory: RESOURCE_EXHAUSTED")
        assert memprof.left_behind() == []


def assert_nothing_left(memprof) -> None:
    assert memprof.processes() == []
    assert memprof.left_behind() == list(memprof.folder.iterdir()) == []


LONG = ("run", *TINY, "--steps", "1000000", "-o", "tiny.memprof")


@pytest.mark.with_one_jax
@pytest.mark.parametrize(
    ("stage", "code", "moment"),
    [
        ("compiling", STAYING_WHERE_IT_HAS_COMPILED, "has_compiled"),
        ("running", TELLING_OF_ITS_STEP, "has_run_a_step"),
    ],
)
@pytest.mark.slow_cases
def test_a_child_that_is_killed_is_told_of(memprof, start, stage, code, moment):
    running = start(*LONG, **memprof.run_before_start(code))
    wait_until(lambda: memprof.has_told(moment))
    os.kill(memprof.compiling_process(), signal.SIGKILL)
    stdout, stderr = running.communicate(timeout=60)
    assert (running.returncode, stdout) == (3, "")
    (sentence,) = without_progress(stderr).splitlines()
    assert sentence.startswith(f"memprof: The {stage} process was killed by SIGKILL")
    assert f"while it was {stage}" in sentence
    assert_nothing_left(memprof)


@pytest.mark.with_one_jax
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["Ctrl-C", "kill"])
@pytest.mark.slow_cases
def test_a_running_step_ends_with_its_command(memprof, start, number, exit_code):
    running = start(*LONG, **memprof.run_before_start(TELLING_OF_ITS_STEP))
    wait_until(lambda: memprof.has_told("has_run_a_step"))
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == exit_code
    wait_until(lambda: not memprof.processes(), seconds=60)
    assert_nothing_left(memprof)


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_child_that_is_killed_while_it_writes_leaves_no_capture(memprof):
    """It dies in the middle of what it hands over: half of that is written."""
    environment = memprof.run_before_start(DYING_WHILE_WRITING)
    ended = memprof("run", *TINY, "--steps", "1", "-o", "tiny.memprof", **environment)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "was killed by SIGKILL" in ended.stderr
    assert "while it was writing" in ended.stderr
    assert_nothing_left(memprof)


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_rows_that_are_finished_survive_the_death_of_another(memprof):
    environment = memprof.run_before_start(DYING_WHILE_DONATING)
    rows = ("-t", "accum2", "-t", "donate", "-t", "bf16")
    ended = memprof("compare", *TINY, "--steps", "1", *rows, "-o", "rows", "--format", "json", **environment)
    assert ended.returncode == 0, ended.stderr
    comparison = json.loads(ended.stdout)
    assert [row["label"] for row in comparison["rows"]] == ["mlp accum2", "mlp bf16"]
    (failure,) = comparison["failures"]
    assert failure["label"] == "mlp donate"
    assert "The running process was killed by SIGKILL" in failure["reason"]
    kept = sorted((memprof.folder / "rows").iterdir())
    assert [read_capture(path).label for path in kept] == ["mlp accum2", "mlp bf16"]
    assert memprof.processes() == memprof.left_behind() == []


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_two_commands_at_once_in_one_folder(memprof, start):
    runs = [start("run", *TINY, "--steps", "3", "--format", "json") for _ in range(2)]
    reports = [json.loads(running.communicate(timeout=300)[0]) for running in runs]
    assert [running.returncode for running in runs] == [0, 0]
    assert reports[0]["measured"]["losses"] == reports[1]["measured"]["losses"]
    kept = sorted(memprof.folder.iterdir())
    assert len(kept) == 2
    times = {read_capture(path).measured.step_seconds for path in kept}
    assert times == {tuple(report["measured"]["step_seconds"]) for report in reports}
    assert memprof.left_behind() == []
