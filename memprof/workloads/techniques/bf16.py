"""bf16: matrix products and activations in bfloat16; parameters and optimizer state stay in float32.

bfloat16 has the exponent range of float32, so that no loss scaling is needed; it has 8 bits of precision, which is why
softmax, logits, loss and the update stay in float32. Activations halve. The price is a bfloat16 copy of each weight
matrix, kept from the forward pass to the backward pass.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.dtypes import bfloat16_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with products and activations in bfloat16."""
    del argument
    return dataclasses.replace(config, compute_dtype="bfloat16", param_dtype="float32", loss_scaling=False)


TECHNIQUE = Technique(
    name="bf16",
    summary="compute in bfloat16; parameters, optimizer state, softmax, logits and loss in float32",
    how_to=HowTo(
        sentence="Compute in bfloat16 from the float32 parameters, and take softmax, logits and loss in float32.",
        code="model = Model(dtype=jnp.bfloat16, param_dtype=jnp.float32)",
    ),
    reference="Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training, arXiv:1905.12322",
    family="precision",
    sets=("compute_dtype", "param_dtype", "loss_scaling"),
    apply=apply,
    evidence=bfloat16_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.PARAM_COPIES,),
    tolerance=2e-2,
)
