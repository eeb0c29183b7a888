"""Log directories for XProf: what its own converters make of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from integration.command import TELLING_OF_ITS_STEP, Command, wait_until
from integration.steps import Step
from xprof.convert import raw_to_tool_data

from memprof.analysis.pipeline import analyze
from memprof.errors import MemprofError
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.running.xprof_log import write_compiled_session

pytestmark = pytest.mark.with_one_jax

CAPTURES = [
    Step(workload="mlp", preset="tiny", target="cpu"),
    Step(workload="transformer", preset="tiny", target="h100-80gb"),
    Step(workload="transformer", preset="tiny", techniques=("bf16+scan+remat+donate",), target="l4"),
]


@pytest.fixture
def memprof(memprof):
    return memprof.with_simple_kernels()


def sessions(log_folder: Path) -> dict[str, Path]:
    return {path.name: path for path in (log_folder / "plugins" / "profile").iterdir()}


def memory_viewer(session: Path) -> dict:
    """What XProf's memory viewer shows of the one program of a session."""
    (program,) = session.glob("*.hlo_proto.pb")
    paths = [str(path) for path in session.glob("*.xplane.pb")]
    options = {"module_name": program.name.removesuffix(".hlo_proto.pb")}
    data, _ = raw_to_tool_data.xspace_to_tool_data(paths, "memory_viewer", options)
    return json.loads(data)


def graph_viewer(session: Path) -> str:
    (program,) = session.glob("*.hlo_proto.pb")
    paths = [str(path) for path in session.glob("*.xplane.pb")]
    options = {"module_name": program.name.removesuffix(".hlo_proto.pb"), "type": "short_txt"}
    data, _ = raw_to_tool_data.xspace_to_tool_data(paths, "graph_viewer", {"graph_viewer_options": options})
    return data.decode()


@pytest.fixture(params=CAPTURES, ids=str)
def step(request) -> Step:
    return request.param


@pytest.mark.slow_cases
def test_a_program_that_never_ran_has_our_peak_in_xprof(compiler, step, tmp_path):
    session = write_compiled_session(compiler.capture(step), tmp_path, name="run")
    assert session == tmp_path / "plugins" / "profile" / "run"
    report = compiler.report(step)
    viewed = memory_viewer(session)
    assert viewed["peakHeapMib"] * 2**20 == report.live_peak_bytes
    assert viewed["totalBufferAllocationMib"] * 2**20 == report.footprint_bytes
    assert graph_viewer(session).startswith("HloModule jit_step")


def test_sessions_do_not_overwrite_each_other(compiler, tmp_path):
    capture = compiler.capture(CAPTURES[0])
    written = [write_compiled_session(capture, tmp_path, name="run").name for _ in range(3)]
    assert written == ["run", "run-2", "run-3"] == sorted(sessions(tmp_path))


def test_a_place_that_is_taken_by_a_file_is_told_of(compiler, tmp_path):
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(MemprofError, match="logs/plugins/profile cannot be created"):
        write_compiled_session(compiler.capture(CAPTURES[0]), tmp_path / "logs", name="run")


def test_show_writes_a_session(memprof, compiler):
    write_capture(compiler.capture(CAPTURES[1]), memprof.folder / "step.memprof")
    ended = memprof("show", "step.memprof", "--format", "xprof", "-o", "logs")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "session written to logs/plugins/profile/transformer-tiny-h100-80gb" in ended.stderr
    (session,) = sessions(memprof.folder / "logs").values()
    assert memory_viewer(session)["peakHeapMib"] * 2**20 == compiler.report(CAPTURES[1]).live_peak_bytes
    assert memprof("show", "step.memprof", "--format", "xprof").returncode == 2
    assert memprof("show", "step.memprof", "-o", "logs").returncode == 2
    assert memprof("show", "missing.memprof", "--format", "xprof", "-o", "new").returncode == 2
    assert not (memprof.folder / "new").exists()


@pytest.mark.slow
def test_a_target_that_is_not_here_gives_a_session_of_its_program(memprof, compiler):
    ended = memprof("trace", "transformer", "--preset", "tiny", "--target", "h100-80gb", "--logdir", "logs")
    assert ended.returncode == 0, ended.stderr
    (session,) = sessions(memprof.folder / "logs").values()
    assert memory_viewer(session)["peakHeapMib"] * 2**20 == compiler.report(CAPTURES[1]).live_peak_bytes
    assert "Measured" not in ended.stdout
    assert memprof("trace", "mlp", "--target", "h100-80gb", "--steps", "3", "--logdir", "logs").returncode == 2


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> tuple[dict, Path]:
    """The report and the session of four traced steps."""
    memprof = Command.in_folder(tmp_path_factory.mktemp("traced"))
    arguments = ("--preset", "tiny", "--target", "cpu", "--steps", "4", "--logdir", "logs", "--format", "json")
    ended = memprof("trace", "transformer", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert memprof.left_behind() == []
    (session,) = sessions(memprof.folder / "logs").values()
    return json.loads(ended.stdout), session


class TestTracedSteps:
    def test_xprof_shows_our_peak(self, traced):
        report, session = traced
        assert memory_viewer(session)["peakHeapMib"] * 2**20 == report["live_peak_bytes"]

    def test_the_steps_are_in_the_trace(self, traced):
        _, session = traced
        paths = [str(path) for path in session.glob("*.xplane.pb")]
        data, _ = raw_to_tool_data.xspace_to_tool_data(paths, "trace_viewer", {})
        names = [event.get("name", "") for event in json.loads(data)["traceEvents"]]
        # Two steps to warm up are not in it; four are.
        assert sorted(name for name in names if re.fullmatch(r"step \d+", name)) == [f"step {n}" for n in (2, 3, 4, 5)]
        assert names.count("feed") == names.count("loss") == 4

    def test_operations_are_joined_with_module_and_memory(self, traced):
        report, _ = traced
        ops = report["measured"]["ops"]
        assert [op["seconds"] for op in ops] == sorted((op["seconds"] for op in ops), reverse=True)
        assert all(op["num_calls"] % 4 == 0 for op in ops)
        assert {op["module"].partition("/")[0] for op in ops} >= {"layers_0", "layers_1", "head", "token_embedding"}
        assert {op["phase"] for op in ops} >= {"forward", "backward", "update"}
        largest = max(ops, key=lambda op: op["held_bytes"])
        assert largest["category"] in report["categories"]
        assert 0 < largest["held_bytes"] <= report["footprint_bytes"]

    def test_operations_take_less_than_the_steps(self, traced):
        """On one thread they would; on several they run side by side, at most as many as there are cores."""
        report, _ = traced
        measured = report["measured"]
        plain = sum(op["seconds"] for op in measured["ops"] if not op["contains_others"])
        assert 0 < plain < sum(measured["step_seconds"]) * (os.cpu_count() or 1)


@pytest.mark.slow
def test_a_trace_that_is_killed_leaves_no_session(memprof, start):
    steps = ("mlp", "--preset", "tiny", "--target", "cpu", "--steps", "1000000")
    running = start("trace", *steps, "--logdir", "logs", **memprof.run_before_start(TELLING_OF_ITS_STEP))
    wait_until(lambda: memprof.has_told("has_run_a_step"))
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 143
    assert not (memprof.folder / "logs").exists()
    assert memprof.processes() == memprof.left_behind() == []


@pytest.mark.slow
def test_show_of_a_measured_capture_has_the_same_peak(memprof):
    ended = memprof("run", "mlp", "--preset", "tiny", "--steps", "1", "--target", "cpu", "-o", "m.memprof")
    assert ended.returncode == 0, ended.stderr
    memprof("show", "m.memprof", "--format", "xprof", "-o", "logs")
    (session,) = sessions(memprof.folder / "logs").values()
    report = analyze(read_capture(memprof.folder / "m.memprof"))
    assert memory_viewer(session)["peakHeapMib"] * 2**20 == report.live_peak_bytes
