"""What the registry finds, what it says about a wrong name, and what it does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memprof.errors import MemprofError
from memprof.workloads import registry


def test_the_workloads_are_found():
    assert {"mlp", "transformer"} <= {workload.name for workload in registry.workloads()}
    assert registry.workload("mlp").name == "mlp"


def test_the_baseline_is_listed_first():
    assert registry.technique_names()[0] == "baseline"
    assert {"bf16", "donate"} <= set(registry.technique_names())


def test_the_optimizers_are_found():
    assert {"adamw", "adam", "sgd"} <= {optimizer.name for optimizer in registry.optimizers()}


@pytest.mark.parametrize(
    ("find", "sentence"),
    [
        (lambda: registry.workload("tranformer"), "There is no workload 'tranformer' (did you mean 'transformer'?): "),
        (lambda: registry.optimizer("adamW"), "There is no optimizer 'adamW' (did you mean 'adamw'?): "),
        (lambda: registry.workload("mlp").preset("tyny"), "There is no preset of mlp 'tyny' (did you mean 'tiny'?): "),
    ],
    ids=["workload", "optimizer", "preset"],
)
def test_an_unknown_name_suggests_the_closest(find, sentence):
    with pytest.raises(MemprofError) as error:
        find()
    assert str(error.value).startswith(sentence + "choose from ")


def test_listing_and_planning_import_no_jax():
    program = (
        "import sys\n"
        "from memprof.workloads import registry\n"
        "from memprof.workloads.build import plan\n"
        "registry.workloads(), registry.technique_names(), registry.optimizers()\n"
        "plan(workload='transformer', overrides=['batch_size=2'], techniques=['bf16+donate'])\n"
        "print(sorted({'jax', 'flax', 'optax'} & sys.modules.keys()))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
