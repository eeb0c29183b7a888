"""`memprof fit --techniques auto` as a process: no worse than trying every combination, and its errors."""

from __future__ import annotations

import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from integration.command import Command
from integration.steps import Compiler, Step
from jsonschema import Draft202012Validator
from made_compiles import Commands

pytestmark = pytest.mark.with_one_jax

MLP = ("fit", "mlp", "--preset", "tiny", "--set", "batch_size=254", "--target", "cpu", "--reserve", "0")
AUTO = ("--techniques", "auto", "--format", "json")
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "fit_techniques.schema.json").read_text())
USER_LOSS = """
import jax.numpy as jnp
import jax
import memprof
import optax

def loss(params, batch):
    hidden = jnp.tanh(jnp.tanh(batch["x"] @ params["w"]) @ params["w"])
    return jnp.mean(hidden ** 2)

def train_spec(*, batch: int = 256):
    shape = lambda *dims: jax.ShapeDtypeStruct(dims, "float32")
    return memprof.TrainSpec(
        loss_fn=loss, params={"w": shape(32, 32)}, optimizer=optax.sgd(1e-3), batch={"x": shape(batch, 32)}
    )

def step_spec():
    return memprof.StepSpec(lambda x: x * 2, (jax.ShapeDtypeStruct((64, 64), "float32"),))
"""


def _found(memprof: Command, *arguments: str) -> dict[str, Any]:
    done = memprof(*arguments, *AUTO)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(found)
    return found


def _every_footprint(compiler: Compiler, families: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    """The footprint of every combination of the tiny MLP, all of them compiled."""
    labels = ["+".join(filter(None, choices)) for choices in product(*families)]
    tiny = partial(Step, workload="mlp", preset="tiny", target="cpu", overrides=("batch_size=254",))
    return {label: compiler.report(tiny(techniques=(label,))).footprint_bytes for label in labels}


@pytest.mark.usefixtures("quick_compiles")  # as the command has it
@pytest.mark.slow
def test_the_answer_is_no_worse_than_trying_every_combination(memprof: Command, compiler: Compiler) -> None:
    sizes = _every_footprint(compiler, (("", "donate"), ("", "bf16"), ("", "accum2", "accum127", "accum254")))
    effort = {"donate": 0, "bf16": 1, "accum2": 2, "accum127": 127, "accum254": 254}  # nothing is computed again here

    def cost(label: str) -> int:
        return sum(effort[name] for name in label.split("+") if name)

    budget_bytes = sizes["accum2"]  # which bf16 and donating do not reach without it
    found = _found(memprof, *MLP, "--memory", f"{budget_bytes}B", "--jobs", "2")
    answer = "+".join(found["answer"])
    assert found["footprint_bytes"] == sizes[answer] <= budget_bytes
    assert cost(answer) == min(cost(label) for label, size in sizes.items() if size <= budget_bytes)
    assert all(each["footprint_bytes"] == sizes["+".join(each["techniques"])] for each in found["tried"])
    assert found["num_compiles"] == len(found["tried"]) < len(sizes)
    assert [change["technique"] for change in found["changes"]] == found["answer"]
    assert found["command"] == f"memprof run mlp --preset tiny --target cpu -t {answer} --set batch_size=254"
    assert len(list((memprof.folder / "fit-mlp-tiny-auto").iterdir())) == found["num_compiles"]  # every compile is kept
    assert set(found["left_out"]) >= {"remat", "chunked-loss=8", "offload-opt"}


def test_what_fits_as_it_is_takes_one_compile(memprof: Command) -> None:
    found = _found(memprof, *MLP, "--memory", "1GiB", "--no-save")
    assert (found["answer"], found["num_compiles"], found["changes"]) == ([], 1, [])
    assert not list(memprof.folder.iterdir())


@pytest.mark.slow
def test_where_nothing_fits_the_table_is_printed_and_the_command_fails(memprof: Command) -> None:
    memory_bytes = 4 * 1024  # enough for the parameters alone, which are not all that a step holds
    one = ("--set", "batch_size=1")  # which cannot be divided into minibatches
    done = memprof(*MLP[:4], *one, *MLP[6:], "--memory", f"{memory_bytes}B", "--no-save", *AUTO)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(found)
    assert found["answer"] is None
    assert not any(each["fits"] for each in found["tried"])
    assert any(each["changes_training"] for each in found["tried"])  # another optimizer is tried in the end
    smallest = min(each["footprint_bytes"] for each in found["tried"])
    assert f"takes {smallest:,} bytes of {memory_bytes:,}" in done.stderr


@pytest.mark.slow
def test_a_users_loss_is_timed_where_steps_are_asked_for(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(USER_LOSS)
    own = ("fit", "train.py:train_spec", "--target", "cpu", "--reserve", "0", "--no-save")
    found = _found(memprof, *own, "--memory", "120KiB", "--steps", "2")
    assert found["answer"]
    assert found["footprint_bytes"] <= 120 * 1024 < found["tried"][-1]["footprint_bytes"]
    assert found["tried"][0]["step_seconds"] > 0
    assert "opt=adam8bit" in found["left_out"]  # plain SGD keeps nothing that it could lower
    assert "changes modules of the model itself" in found["left_out"]["remat-mlp"]


def test_a_step_as_it_is_cannot_be_changed(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(USER_LOSS)
    done = memprof("fit", "train.py:step_spec", "--target", "cpu", "--memory", "20KiB", "--no-save", *AUTO)
    assert done.returncode == 2
    assert "is a finished StepSpec, a step, which techniques cannot change" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("-t", "auto", "--vary", "batch_size"), "--vary finds the largest value"),
        (("-t", "auto", "--multiple-of", "2"), "--multiple-of finds the largest value"),
        (("-t", "auto+bf16"), "auto chooses among all techniques"),
        (("-t", "bf16", "--steps", "2"), "--steps applies to --techniques auto"),
        (("-t", "bf16", "--jobs", "2"), "--jobs applies to --techniques auto"),
    ],
)
def test_options_of_the_other_question_are_refused(
    in_process: Commands, arguments: tuple[str, ...], fragment: str
) -> None:
    done = in_process(*MLP, "--memory", "1GiB", *arguments)
    assert (done.code, done.stdout, done.stderr.count("\n"), done.asked) == (2, "", 1, ())
    assert fragment in done.stderr
