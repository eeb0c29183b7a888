"""References to the user's code that tell what they name without importing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.workloads.user.reference import names_step, parse

_FILE = """
import memprof
from memprof import StepSpec, TrainSpec

as_it_is = memprof.StepSpec(step, (x,))
of_a_loss = TrainSpec(loss_fn=loss, params=params, optimizer=optimizer, batch=batch)

def annotated() -> memprof.StepSpec:
    return make()

def annotated_by_a_text() -> "StepSpec":
    return make()

def returned(batch_size: int = 8):
    return StepSpec(step, (x,))

def of_the_loss() -> TrainSpec:
    unlike(StepSpec)
    return make()

def either(flag: bool = False):
    return StepSpec(step, (x,)) if flag else of_a_loss

def elsewhere():
    return make()
"""


@pytest.mark.parametrize(
    ("name", "is_step"),
    [
        ("as_it_is", True), ("annotated", True), ("annotated_by_a_text", True), ("returned", True),
        ("of_a_loss", False), ("of_the_loss", False), ("elsewhere", False), ("missing", False),
    ],
)  # fmt: skip
def test_a_step_spec_is_known_by_the_text_of_its_file(name: str, is_step: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_FILE, encoding="utf-8")
    assert names_step(parse(f"{file}:{name}")) is is_step


def test_a_file_that_python_cannot_read_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("def step_spec(:\n", encoding="utf-8")
    assert not names_step(parse(str(file)))
