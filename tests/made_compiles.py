"""The command line in this process, with captures by hand where children would compile: what it asks for is kept."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from hlo import Step
from hlo_nodes import f32
from measurements import CPU_RUN

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.profiler_cli import command_line, trace
from memprof.profiler_cli import fit as fit_verb
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.processes import launch
from memprof.sources.jax.processes.child_process import Children
from memprof.sources.jax.processes.task import Task, encoded_task
from memprof.sources.jax.running.xprof_log import write_compiled_session
from memprof.studies import side_by_side
from memprof.studies.fit import techniques, value
from memprof.workloads import registry
from memprof.workloads.build import BuiltInStep
from memprof.workloads.user.build import UserStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, and all that can be seen of it."""

    code: int
    stdout: str
    stderr: str
    asked: tuple[str, ...]
    files: Mapping[str, str]


@cache
def made_capture(*, batch_size: int = 32, num_layers: int = 6, techniques: tuple[str, ...] = ()) -> Capture:
    """Of a step whose activations grow with the batch, in modules that lie in one another."""
    step = Step()
    params = [
        step.argument(f"params['block_{n // 2}']['part_{n % 2}']['w']", Role.PARAMS, f32(8, 8 + n))
        for n in range(num_layers)
    ]
    x = step.argument("batch['x']", Role.BATCH, f32(batch_size, 8))
    step.argument("opt_state.mu", Role.OPTIMIZER_STATE, f32(64))
    last = x
    for number, each in enumerate(params):
        frame = step.frame("/model.py", 10 + number)
        name = f"jit(step)/jvp(Net)/block_{number // 2}/part_{number % 2}/op"
        last = step.op(f"h{number}", "dot", f32(batch_size, 8 + number), [last, each], name, frame=frame)
    step.result(
        *(step.op(f"new_{n}", "subtract", f32(8, 8 + n), [each], "jit(step)/op") for n, each in enumerate(params))
    )
    label = " ".join(["mlp", "+".join(techniques)]).strip()
    config = {"preset": "tiny", "batch_size": batch_size, "hidden_size": 32}
    return replace(step.capture(), label=label, workload="mlp", techniques=techniques, config=config)


_built = cache(typer.main.get_command)  # else Typer builds all commands again for each that is run


class Commands:
    """Runs commands in an empty folder. Nothing is compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._asked: list[str] = []
        monkeypatch.chdir(folder)
        monkeypatch.setattr(typer.main, "get_command", _built)
        for module in (launch, value):
            monkeypatch.setattr(module, "compile_in_child", self._compile)
        planner: Any = SimpleNamespace(start=lambda task, progress: partial(self._compile, task), children=Children())
        monkeypatch.setattr(launch, "_planner_of", lambda tasks: nullcontext(planner))
        monkeypatch.setattr(launch, "num_at_a_time", lambda settings, target: launch.default_num_jobs())
        monkeypatch.setattr(launch, "trace_in_child", self._trace)
        monkeypatch.setattr(techniques, "recomputed_in_child", lambda task, **_: [0] * len(task.recipes))
        monkeypatch.setattr(trace, "check_can_view", lambda: None)
        monkeypatch.setattr(trace, "view", lambda folder: self._asked.append("view"))
        for module in (side_by_side, techniques):
            monkeypatch.setattr(module, "compile_all", self._compile_all)
        for module in (fit_verb, trace):
            assert module  # imported, so that the names above are those that the commands use

    def __call__(self, *arguments: str, keeps_files: bool = False) -> Ended:
        """Run one to its end, and then put the folder back as it was, unless it is to be kept."""
        before = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        self._asked.clear()
        self._monkeypatch.setattr(sys, "argv", ["memprof", *arguments])
        code = command_line._run()
        printed = self._capsys.readouterr()
        ended = Ended(
            code=code,
            stdout=_without_times(printed.out),
            stderr=_in_order(_without_times(printed.err)),
            asked=tuple(sorted(self._asked)),  # rows start in threads
            files={
                str(path.relative_to(self.folder)): _content(path)
                for path in sorted(self.folder.rglob("*"))
                if path.is_file()
            },
        )
        if not keeps_files:
            folders = {folder for path in before for folder in path.parents}
            for path in self.folder.rglob("*"):
                if path.is_file() and path not in before:
                    path.unlink()
                elif path.is_dir() and path not in folders:
                    shutil.rmtree(path)
            for path, content in before.items():
                if not path.exists() or path.read_bytes() != content:  # the others keep their times
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
        return ended

    def _compile(self, task: Task, **_: Any) -> FreshCapture:
        self._asked.append(encoded_task(task).decode())
        recipe = task.recipe
        assert isinstance(recipe, BuiltInStep | UserStep)
        techniques = "+".join(each.label for each in recipe.techniques)
        fields: Mapping[str, Any] = dict(recipe.overrides) if isinstance(recipe, UserStep) else _changed(recipe)
        batch_size = int(fields.get("batch_size", 32)) * int(fields.get("hidden_size", 32)) // 32
        capture = made_capture(
            batch_size=batch_size // {"": 1, "baseline": 1, "bf16": 2}.get(techniques, 4),
            techniques=tuple(techniques.split("+")) if techniques else (),
        )
        return FreshCapture(capture=capture)

    def _trace(
        self, task: Task, *, write_session: Callable[[Capture, Path], Path], **_: Any
    ) -> tuple[FreshCapture, Path]:
        fresh = self._compile(task)
        with tempfile.TemporaryDirectory() as folder:  # for a trace: the program alone
            write_compiled_session(fresh.capture, Path(folder), name="trace")
            return fresh, write_session(replace(fresh.capture, measured=CPU_RUN), Path(folder))

    def _compile_all(self, tasks: Any, *, num_jobs: int, progress: Callable[[str, str], None]) -> Any:
        self._asked.append(f"{num_jobs} at a time")
        return launch.compile_all(tasks, num_jobs=num_jobs, progress=progress)


def _changed(recipe: BuiltInStep) -> Mapping[str, Any]:
    """The fields that are not the preset's."""
    preset = registry.workload(recipe.workload).preset(recipe.preset)
    return {name: value for name, value in recipe.config.items() if value != getattr(preset, name)}


def _content(path: Path) -> str:
    try:
        return str(replace(read_capture(path), hlo_proto=b""))  # a zip also holds the time
    except MemprofError:
        return _without_times(path.read_bytes().decode(errors="replace"))


def _in_order(stderr: str) -> str:
    """Put the rows that are done first, by name and without a count, because they are compiled in parallel."""
    done: list[str] = []
    rest: list[str] = []
    for line in re.sub(r": done \(\d+ of .*\)$", ": done", stderr, flags=re.MULTILINE).splitlines(keepends=True):
        (done if line.endswith(": done\n") else rest).append(line)
    return "".join([*sorted(done), *rest])


def _without_times(text: str) -> str:
    """Without durations, and without what is as wide as they are: the title of their column, a rule after them."""
    return re.sub(r" *\b([\d.,]+ ?(m?s|min|h)|time)\b( ─+)?|\"\w*seconds\": [\d.e-]+", "TIME", text)
