"""The action for a forge: its steps, as a runner runs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from integration.command import Command

pytestmark = pytest.mark.with_one_jax
ACTION = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text())
STEP = """
import jax, jax.numpy as jnp, memprof

def step_spec():
    shape = jax.ShapeDtypeStruct(({size},), jnp.float32)
    return memprof.StepSpec(lambda x: x * 2, (shape,), roles={{"x": "batch"}})
"""


class Runner:
    """Runs the steps of the action in a folder, with a `memprof` and a `gh` of the test's own."""

    def __init__(self, memprof: Command) -> None:
        self.folder, self.environment = memprof.folder, dict(memprof.environment)
        programs = memprof.temp_folder / "bin"
        programs.mkdir()
        main = f'exec "{sys.executable}" -m memprof.profiler_cli.main "$@"'
        for name, script in (("memprof", main), ("gh", 'echo "gh $*" >> commented'), ("pip", 'echo "pip $*"')):
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        self.environment |= {
            "PATH": f"{programs}:{self.environment['PATH']}",
            "RUNNER_TEMP": str(memprof.temp_folder),
            "GITHUB_STEP_SUMMARY": str(memprof.temp_folder / "summary"),
            "GITHUB_OUTPUT": str(memprof.temp_folder / "output"),
        }
        self.summary = memprof.temp_folder / "summary"
        subprocess.run(["git", "init", "-q"], cwd=self.folder, check=True)

    def write_step(self, size: int) -> None:
        (self.folder / "train.py").write_text(STEP.format(size=size))

    def run(self, name: str, **values: str) -> subprocess.CompletedProcess[str]:
        step: Mapping[str, Any] = next(each for each in ACTION["runs"]["steps"] if each.get("name") == name)
        assert values.keys() == step["env"].keys()
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env=self.environment | values,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def check(self, *, is_base: bool, growth: str = "", most: str = "") -> subprocess.CompletedProcess[str]:
        baseline = ACTION["inputs"]["baseline"]["default"]
        values = {"STEP": "train.py:step_spec", "TARGET": "cpu", "MAX": most, "FAIL_ON": growth, "BASELINE": baseline}
        return self.run("Check", **values, IS_BASE=str(is_base).lower())


@pytest.fixture
def runner(memprof: Command) -> Runner:
    return Runner(memprof)


@pytest.mark.slow
def test_the_default_branch_keeps_a_baseline_and_a_pull_request_is_held_against_it(runner: Runner) -> None:
    runner.write_step(1024)
    first = runner.check(is_base=True)
    assert first.returncode == 0, first.stderr
    assert "no baseline yet" in runner.summary.read_text()
    unchanged = runner.check(is_base=False)
    assert unchanged.returncode == 0, unchanged.stderr
    runner.write_step(2048)
    grown = runner.check(is_base=False, growth="footprint:+2%")
    assert grown.returncode == 1
    assert "| batch" in runner.summary.read_text()
    allowed = runner.check(is_base=False, growth="footprint:+200% batch:+1MiB outputs:+1MiB")
    assert allowed.returncode == 0, allowed.stderr
    assert runner.check(is_base=False, growth="footprint:+200%", most="1KiB").returncode == 1


def test_it_comments_and_installs_what_is_asked_for(runner: Runner) -> None:
    table = runner.folder / "table.md"
    said = runner.run("Comment", GH_TOKEN="-", PULL_REQUEST="7", TABLE=str(table))
    assert said.returncode == 0, said.stderr
    assert (
        f"gh pr comment 7 --edit-last --create-if-none --body-file {table}" in (runner.folder / "commented").read_text()
    )
    installs = {"": "jax-memprof[deviceless]", "0.2.0": "jax-memprof[deviceless]==0.2.0", ".": ".[deviceless]"}
    for version, wanted in installs.items():
        assert runner.run("Install", VERSION=version).stdout == f"pip install {wanted}\n"
