"""The inference step of a trainable model: its forward pass, with weights and inputs as arguments."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from memprof.analysis.records.categories import Role
from memprof.sources.jax.tracing.step import Feed, StepSpec
from memprof.workloads.model import Model
from memprof.workloads.quantisation import with_quantised_kernels

_PARAMS = 0


def inference_step(model: Model, *, seed: int, weight_dtype: str) -> StepSpec:
    """Return the step `infer(params, inputs, ...)` of a model without dropout.

    Args:
        seed: seed of the weights and the inputs when the step runs.
        weight_dtype: dtype of the kernels (see `quantisation.py`).
    """
    rng = jax.random.PRNGKey(seed)

    def init_params(rng: Any) -> Any:
        return with_quantised_kernels(model.init_params(rng), weight_dtype)

    def infer(params: Any, batch: Any) -> Any:
        return model.module.apply({"params": params}, **batch)

    def argument(number: int, step: int) -> Any:
        if number == _PARAMS:
            return jax.jit(init_params)(rng)
        sample = model.sample(np.random.default_rng((seed, step)))
        return {name: sample[name] for name in model.inputs}

    return StepSpec(
        fn=infer,
        args=(jax.eval_shape(init_params, rng), {name: model.batch_shapes[name] for name in model.inputs}),
        roles={"params": Role.PARAMS, "batch": Role.BATCH},
        feed=Feed(
            argument=argument,
            loss=lambda result: None,  # inference has no loss
            num_examples=next(iter(model.batch_shapes.values())).shape[0],
        ),
    )
