"""`build_step`: from JSON values to a StepSpec."""

from __future__ import annotations

import json

import jax
import pytest

from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.workloads.build import build_step, plan
from memprof.workloads.train_config import inference_fields, technique_fields


def test_a_step_says_what_it_is():
    spec = build_step(
        workload="mlp", preset="tiny", overrides=["batch_size=8", "seed=3"], techniques=["bf16", "donate"]
    )
    assert spec.label == "mlp bf16+donate"
    assert spec.techniques == ("bf16", "donate")
    assert spec.donate_argnums == (0,)
    assert spec.roles == {
        "state": Role.OTHER_STATE,
        "state.params": Role.PARAMS,
        "state.opt_state": Role.OPTIMIZER_STATE,
        "batch": Role.BATCH,
    }
    assert spec.config == {
        "preset": "tiny",
        "batch_size": 8,
        "input_size": 12,
        "hidden_size": 32,
        "num_classes": 4,
        "dropout_rate": 0.1,
        "phase": "training",
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "weight_decay": 1e-2,
        "seed": 3,
        **{name: value for name, value in technique_fields().items() if name not in inference_fields()},
        "compute_dtype": "bfloat16",
        "donate": True,
    }
    assert json.loads(json.dumps(spec.config)) == spec.config
    assert spec.args[1]["inputs"].shape == (8, 12)


def test_the_default_preset_is_taken_and_named():
    choices = plan(workload="transformer")
    assert choices.flat_config()["preset"] == "gpt2"
    assert choices.config.hidden_size == 768


def test_the_initial_state_is_traced_once(monkeypatch):
    traced = []
    monkeypatch.setattr(
        jax, "eval_shape", lambda fn, *args, whole=jax.eval_shape: traced.append(fn) or whole(fn, *args)
    )
    build_step(workload="mlp", preset="tiny")
    assert [fn.__name__ for fn in traced if fn.__name__ == "_init_state"] == ["_init_state"]


def test_without_techniques_nothing_is_donated():
    spec = build_step(workload="mlp", preset="tiny")
    assert (spec.donate_argnums, spec.techniques, spec.label) == ((), (), "mlp")


def test_joined_and_separate_techniques_are_the_same():
    joined = build_step(workload="mlp", preset="tiny", techniques=["bf16+donate"])
    assert joined.techniques == ("bf16", "donate")


def test_donation_aliases_the_whole_state():
    spec = build_step(workload="mlp", preset="tiny", techniques=["donate"])
    memory = jax.jit(spec.fn, donate_argnums=spec.donate_argnums).lower(*spec.args).compile().memory_analysis()
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(spec.args[0]))
    assert memory.alias_size_in_bytes == state_bytes


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"workload": "gpt"}, "no workload 'gpt'"),
        ({"workload": "mlp", "preset": "huge"}, "no preset of mlp 'huge'"),
        ({"workload": "mlp", "overrides": ["depth=3"]}, "no field 'depth'"),
        ({"workload": "mlp", "overrides": ["optimizer=adamax2"]}, "no optimizer 'adamax2'"),
        ({"workload": "mlp", "techniques": ["fast"]}, "no technique 'fast'"),
    ],
    ids=["workload", "preset", "field", "optimizer", "technique"],
)
def test_a_wrong_name_is_one_sentence(arguments, fragment):
    with pytest.raises(MemprofError) as error:
        build_step(**arguments)
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)
