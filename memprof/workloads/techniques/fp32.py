"""fp32: float32 throughout, said aloud.

It is what the baseline computes in. A label such as `fp32+scan+accum4` says so beside rows in another precision.
"""

from __future__ import annotations

import dataclasses

from memprof.workloads.evidence.dtypes import float32_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with everything in float32."""
    del argument
    return dataclasses.replace(config, compute_dtype="float32", param_dtype="float32", loss_scaling=False)


TECHNIQUE = Technique(
    name="fp32",
    summary="everything in float32, as in the baseline",
    how_to=HowTo(
        sentence="Compute in float32 and hold the parameters in it, which is what JAX does unasked.",
        code="model = Model(dtype=jnp.float32, param_dtype=jnp.float32)",
    ),
    reference="IEEE 754-2019, binary32",
    family="precision",
    sets=("compute_dtype", "param_dtype", "loss_scaling"),
    apply=apply,
    evidence=float32_evidence,
    restates_baseline=True,
    tolerance=0.0,
)
