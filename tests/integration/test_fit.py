"""`memprof fit` as a process: an exact answer for a built-in workload and a user's step, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from integration.command import Command
from jsonschema import Draft202012Validator
from made_compiles import Commands

pytestmark = pytest.mark.with_one_jax

TINY = ("fit", "mlp", "--preset", "tiny", "--target", "cpu")
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "fit.schema.json").read_text())
USER_STEP = """
import jax.numpy as jnp
import jax
import memprof

def step_spec(*, batch: int = 4, name: str = "a"):
    def step(params, x):
        return params - 0.1 * jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p) ** 2))(params)
    shape = lambda *dims: jax.ShapeDtypeStruct(dims, "float32")
    return memprof.StepSpec(step, (shape(64, 64), shape(batch, 64)), roles={"params": "params", "x": "batch"})
"""


def _fit(memprof: Command, *arguments: str) -> dict[str, Any]:
    done = memprof(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(found)
    return found


def test_the_answer_is_exact_and_steps_by_valid_multiples(memprof: Command) -> None:
    found = _fit(memprof, *TINY, "--memory", "200KiB", "--reserve", "0", "-t", "accum4")
    assert found["step"] == 4
    assert found["value"] % 4 == 0
    assert found["footprint_bytes"] <= found["budget_bytes"] == 200 * 1024 < found["next_footprint_bytes"]
    sizes = {trial["value"]: trial["footprint_bytes"] for trial in found["tried"]}
    assert len(sizes) == found["num_compiles"] <= 8
    assert sizes[found["value"]] == found["footprint_bytes"]
    assert sizes[found["value"] + 4] == found["next_footprint_bytes"]
    captures = list((memprof.folder / "fit-mlp-tiny-accum4").iterdir())
    assert len(captures) == found["num_compiles"]  # every compile is kept


@pytest.mark.slow
def test_a_parameter_of_a_users_function_is_varied(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(USER_STEP)
    found = _fit(memprof, "fit", "train.py", "--vary", "batch", "--target", "cpu", "--memory", "100KiB", "--no-save")
    assert found["field"] == "batch"
    assert found["command"] == f"memprof run train.py --target cpu --set batch={found['value']}"
    assert found["reserve_bytes"] == 0  # the CPU has no pool of its own
    assert found["footprint_bytes"] <= 102_400 < found["next_footprint_bytes"]
    assert not list(memprof.folder.glob("fit-*"))


@pytest.mark.parametrize(
    ("field", "fragment"),
    [("name", "name of train:step_spec is 'a', not a whole number"), ("btach", "(did you mean 'batch'?)")],
)
@pytest.mark.slow_cases
def test_a_parameter_that_is_no_number_is_told_from_the_users_own_code(
    memprof: Command, field: str, fragment: str
) -> None:
    (memprof.folder / "train.py").write_text(USER_STEP)
    done = memprof("fit", "train.py", "--vary", field, "--target", "cpu", "--memory", "100KiB", "--no-save")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert fragment in done.stderr


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (("--memory", "40 bananas"), ("'40 bananas' is not a memory size",)),
        ((), ("the CPU has no fixed amount of memory", "--memory")),
        (("--memory", "1GiB", "--reserve", "2GiB"), ("leaves nothing of the memory",)),
        (("--memory", "1GiB", "--reserve", "a lot"), ("'a lot' is not a memory size",)),
        (("--memory", "1GiB", "--set", "batch_size=many"), ("batch_size", "many")),
        (("--memory", "1GiB", "--set", "batch_size=0"), ("batch_size is 0",)),
        (("--memory", "1GiB", "--vary", "hidden"), ("There is no number to vary", "batch_size")),
        (("--memory", "1GiB", "--vary", "learning_rate"), ("0.001, not a whole number",)),
        (("--memory", "1GiB", "--format", "csv"), ("not shown as csv",)),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(
    in_process: Commands, arguments: tuple[str, ...], fragments: tuple[str, ...]
) -> None:
    done = in_process(*TINY, *arguments)
    assert (done.code, done.stdout, done.asked) == (2, "", ())
    assert done.stderr.count("\n") == 1
    for fragment in fragments:
        assert fragment in done.stderr


def test_a_memory_below_the_parameters_is_told_with_the_arithmetic(memprof: Command) -> None:
    done = memprof(*TINY, "--memory", "1KiB", "--reserve", "0", "--no-save")
    assert done.returncode == 2
    assert "the parameters alone do not fit: params " in done.stderr
    assert "does not fit: footprint " in done.stderr
    assert "more than 1.00 KiB of cpu" in done.stderr


def test_a_field_that_does_not_matter_is_an_error(memprof: Command) -> None:
    done = memprof(*TINY, "--memory", "1GiB", "--vary", "seed", "--set", "seed=1", "--no-save")
    assert done.returncode == 2
    assert "the footprint does not depend on seed" in done.stderr
