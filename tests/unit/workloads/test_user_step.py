"""A user's `StepSpec` under techniques: what concerns its compile alone applies to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.errors import MemprofError
from memprof.workloads.composition import parse_techniques
from memprof.workloads.user.build import UserStep
from memprof.workloads.user.reference import parse

_STEP = """
import jax
import memprof

def step_spec():
    x = jax.ShapeDtypeStruct((4,), "float32")
    return memprof.StepSpec(jax.numpy.sin, (x,), compiler_options={"xla_a": "1"})
"""


def _step(folder: Path, techniques: str) -> UserStep:
    (folder / "own_step.py").write_text(_STEP)
    chosen = tuple(each.chosen for each in parse_techniques(techniques))
    return UserStep(reference=parse(f"{folder / 'own_step.py'}:step_spec"), techniques=chosen)


def test_a_step_takes_options_of_the_compiler_beside_its_own(tmp_path: Path) -> None:
    built = _step(tmp_path, "xla:xla_b=true").build()
    assert built.compiler_options == {"xla_a": "1", "xla_b": "True"}
    assert built.techniques == ("xla:xla_b=true",)


def test_a_technique_that_changes_the_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemprofError, match="a step, which techniques cannot change"):
        _step(tmp_path, "xla:xla_b=1+donate").build()
