"""The second time nothing is compiled: what comes of a plan from the cache is what came of the compile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from integration.command import Command

import memprof as api
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.processes.child_process import ChildProcess
from memprof.sources.jax.xla.plan_cache import PlanCache

pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.with_one_jax]
STEP = ("mlp", "--preset", "tiny", "--target", "cpu")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMPROF_CACHE_DIR", str(tmp_path / "cache"))


def test_the_second_command_compiles_nothing_and_makes_the_same_capture(memprof: Command) -> None:
    first = memprof("run", *STEP, "--full", "-o", "first.memprof")
    second = memprof("run", *STEP, "--full", "-o", "second.memprof")
    assert (first.returncode, second.returncode) == (0, 0)
    assert "compiling" in first.stdout
    assert "plan from the cache (compiled in" in second.stdout
    made, cached = (read_capture(memprof.folder / name) for name in ("first.memprof", "second.memprof"))
    assert made.timings.cached_compile_seconds is None
    assert cached.timings.cached_compile_seconds == made.timings.compile_seconds
    assert cached == replace(made, timings=cached.timings)
    rows = ("-t", "baseline", "-t", "donate", "-o", "rows")
    assert memprof("compare", *STEP, *rows).returncode == 0
    from_cache = {
        capture.techniques: capture.timings.cached_compile_seconds is not None
        for capture in map(read_capture, (memprof.folder / "rows").glob("*.memprof"))
    }
    assert from_cache == {("baseline",): True, ("donate",): False}
    assert memprof("cache", "info").stdout.split("\n")[2].split() == ["plans", "2"]
    assert memprof("cache", "clear").stderr.startswith("plans removed: 2, ")


def test_the_api_starts_no_process_for_a_plan_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return weights - 0.1 * jax.grad(lambda weights: jnp.sum(jnp.tanh(x @ weights)))(weights)

    profiles = []
    for _ in range(2):  # from one line: where a step is called is in its program
        profiles.append(api.profile(step, jnp.ones((8, 8)), jnp.ones((4, 8)), target="cpu"))
        monkeypatch.setattr(ChildProcess, "started", None)
    first, second = (profile.capture for profile in profiles)
    assert second.timings.cached_compile_seconds == first.timings.compile_seconds
    assert second == replace(first, timings=second.timings)
    assert PlanCache.of_user().usage().num_plans == 1


@pytest.mark.slow
def test_of_two_equal_commands_at_one_moment_one_compiles(start: Any, tmp_path: Path) -> None:
    commands = [start("run", *STEP, "--format", "json", "--no-save") for _ in range(2)]
    answers = [json.loads(command.communicate(timeout=120)[0]) for command in commands]
    cached = [answer["timings"].pop("cached_compile_seconds") for answer in answers]
    assert cached.count(None) == 1
    assert answers[0]["categories"] == answers[1]["categories"]
    assert sorted(path.suffix for path in (tmp_path / "cache" / "plans").iterdir()) == ["", ".memprof-plan"]
