"""The commands of README.md and docs/, as printed and in order, each page in a folder of its own.

Nothing is compiled here: captures made by hand take the place of XLA (`made_compiles.py`). All else is as for a user:
options, names, and the files that one command writes and another one reads. What is compiled, too, is in
`integration/test_printed.py`.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_compiles import Commands, made_capture
from oom_logs import POSTED
from printed import PAGES, commands, is_run, name_of, write_scripts

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture
from memprof.sources.capture_file import write_capture
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.nvidia.catalogue import gpus
from memprof.sources.jax.targets.resolve import if_known, resolve
from memprof.workloads.build import BuiltInStep
from memprof.workloads.user.build import UserStep
from tests.unit.sources.test_importing import GPU, proto_of, training_step
from tests.unit.sources.test_memory_profiles import made, written

pytestmark = pytest.mark.with_one_jax

# They take processes, or the names of a real program; integration/test_printed.py runs them.
_COMPILED = (
    "memprof watch",
    "memprof doctor",
    "memprof plan",
    "memprof serve-plan",
    "memprof advise train.py",
    "memprof advise loop.py",
    "--why",
    "--require-effect",
)
_OF_TRAIN_PY = {"batch_size": 32, "seq_len": 128}
_FIRST = "transformer-gpt2-h100-80gb.memprof"  # what the README's first command writes


class PrintedCommands(Commands):
    """Captures have the names that the compiled ones would have."""

    def _compile(self, task: Task, **_: Any) -> FreshCapture:
        recipe = task.recipe
        assert isinstance(recipe, BuiltInStep | UserStep)
        given = {} if isinstance(recipe, BuiltInStep) else {name: int(text) for name, text in recipe.overrides}
        fields = recipe.config if isinstance(recipe, BuiltInStep) else {**_OF_TRAIN_PY, **given}
        length = int(fields.get("context_len") or fields.get("seq_len") or 128)
        made = made_capture(
            batch_size=int(fields["batch_size"]) * length,
            techniques=tuple(each.label for each in recipe.techniques),
        )
        target = if_known(task.target) or resolve("h100-80gb")
        workload, preset = ("step_spec", "") if isinstance(recipe, UserStep) else (recipe.workload, recipe.preset)
        named = _named(made, workload, preset)
        return FreshCapture(capture=replace(named, target=target, config={**fields, "preset": preset}))


def _named(capture: Capture, workload: str, preset: str) -> Capture:
    label = " ".join([workload, "+".join(capture.techniques)]).rstrip()
    return replace(capture, workload=workload, label=label, config={**capture.config, "preset": preset})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> PrintedCommands:
    """Runs commands in a folder that holds what a user brings: scripts, a dump, a log; and the README's capture."""
    folder = tmp_path / "folder"
    (folder / "dump").mkdir(parents=True)
    write_scripts(folder)
    (folder / "dump" / GPU.replace("jit_step", "jit_train_step")).write_bytes(proto_of(training_step()))
    (folder / "dump" / "module_0001.jit_train_step.gpu_target_config.pbtxt").write_text(
        gpus()["h100-80gb"].target_config()
    )
    (folder / "slurm-1234.out").write_text(next(iter(POSTED.values())).text, encoding="utf-8")
    for name, count in (("before.prof", 2), ("after.prof", 5)):
        written(folder / name, made(value=[count, 8 * count]))
    write_capture(_named(replace(made_capture(), target=resolve("h100-80gb")), "transformer", "gpt2"), folder / _FIRST)
    return PrintedCommands(monkeypatch, capsys, folder)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.slow_cases
def test_each_command_does_what_the_page_says(page: Path, run: PrintedCommands) -> None:
    failed = []
    for command in filter(is_run, commands(page)):
        words = shlex.split(command.text)
        if words[0] != "memprof" or any(part in command.text for part in _COMPILED):
            continue
        ended = run(*words[1:], keeps_files=True)
        if ended.code != 0:
            failed.append(f"{command}\n{ended.code}: {ended.stderr}")
    assert not failed, "\n".join(failed)
