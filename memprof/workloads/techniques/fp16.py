"""fp16: matrix products and activations in float16, with a loss scale that adapts itself.

float16 has more precision than bfloat16 (11 bits against 8) and far less range: gradients below 6e-8 become zero. So
the loss is multiplied before it is differentiated, and the gradients are divided again. The factor starts at 65536,
doubles after 2000 good steps, and halves when a gradient is not finite; that step is skipped, and the state stays as it
is. To be able to skip, the update must wait for the last gradient: all of them are in memory at once.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.dtypes import float16_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with products and activations in float16, and the loss scaled."""
    del argument
    return dataclasses.replace(config, compute_dtype="float16", param_dtype="float32", loss_scaling=True)


TECHNIQUE = Technique(
    name="fp16",
    summary="compute in float16 with dynamic loss scaling; steps with non-finite gradients are skipped",
    how_to=HowTo(
        sentence="Compute in float16 from the float32 parameters, and scale the loss by a factor that adapts itself.",
        code="dynamic_scale, is_finite, loss, grads = dynamic_scale.value_and_grad(loss_in_float16)(params)",
    ),
    reference="Micikevicius et al. 2018, Mixed Precision Training, arXiv:1710.03740",
    family="precision",
    sets=("compute_dtype", "param_dtype", "loss_scaling"),
    apply=apply,
    evidence=float16_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.PARAM_COPIES, Category.OTHER_STATE, Category.GRADIENTS),
    tolerance=5e-3,
)
