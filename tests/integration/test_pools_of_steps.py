"""The pool of JAX in the processes that compile and run steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from memprof.profiler_cli.app import app

_STEP = """
import os
from pathlib import Path

import jax.numpy as jnp
import memprof

Path("preallocate.txt").write_text(os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "as JAX does"))


def spec():
    return memprof.StepSpec(lambda x: x * 2, (jnp.ones(8),))
"""


@pytest.mark.parametrize(
    ("own", "arguments", "preallocates"),
    [
        (None, ["--steps", "1"], "as JAX does"),
        ("false", ["--steps", "1"], "false"),
        # A compile alone leaves the device to others.
        (None, [], "0"),
        ("true", [], "0"),
    ],
)
@pytest.mark.slow_cases
def test_a_step_runs_in_the_pool_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, arguments: list[str], preallocates: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(_STEP)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    if own is not None:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", own)
    shown = CliRunner().invoke(app, ["run", "train.py:spec", "--target", "cpu", "--no-save", "-q", *arguments])
    assert shown.exit_code == 0, shown.output
    assert Path("preallocate.txt").read_text() == preallocates
