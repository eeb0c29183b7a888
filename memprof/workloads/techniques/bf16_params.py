"""bf16-params: parameters in bfloat16 too, not only what is computed from them.

Parameters halve, and so do their gradients. optax makes optimizer state in the dtype of the parameters unless it is
told otherwise, so the moments halve as well. No weight can change by less than 1/256 of itself in one step: late in a
training run, small updates are lost. That is the price, and memory does not show it.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.dtypes import bfloat16_params_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with products, activations and parameters in bfloat16."""
    del argument
    return dataclasses.replace(config, compute_dtype="bfloat16", param_dtype="bfloat16", loss_scaling=False)


TECHNIQUE = Technique(
    name="bf16-params",
    summary="compute in bfloat16, and hold parameters in it too; so is the optimizer state, by optax's defaults",
    how_to=HowTo(
        sentence="Compute in bfloat16 and hold the parameters, and with them the optimizer state, in it too.",
        code="model = Model(dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)",
    ),
    reference="Zamirai et al. 2020, Revisiting BFloat16 Training, arXiv:2010.06192",
    family="precision",
    sets=("compute_dtype", "param_dtype", "loss_scaling"),
    apply=apply,
    evidence=bfloat16_params_evidence,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.ACTIVATIONS),
    tolerance=5e-2,
)
