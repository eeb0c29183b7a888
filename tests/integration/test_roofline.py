"""The roofline bound of programs that XLA compiles for a GPU: products at the peak of their type, to the last one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import memprof
from memprof.sources.jax.targets.nvidia.catalogue import gpus

BF16_PEAK = gpus()["h100-80gb"].operations_per_second["bf16"]


def _loop_of_products(weights: Any, x: Any) -> Any:
    return jax.lax.scan(lambda x, weight: (x @ weight, None), x, weights)[0]


def _loss_of_convolution(kernel: Any, x: Any) -> Any:
    result = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.sum(jax.nn.relu(result).astype(jnp.float32) ** 2)


def _bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@pytest.mark.parametrize(
    ("step", "arguments", "num_products"),
    [
        pytest.param(_loop_of_products, (_bf16(8, 4096, 4096), _bf16(4096, 4096)), 8 * 4096**3, id="loop"),
        # Three passes. Of a "same" convolution by 3, the outer places meet only 2 of 56 inputs less each way.
        pytest.param(
            jax.grad(_loss_of_convolution, (0, 1)),
            (_bf16(3, 3, 256, 256), _bf16(64, 56, 56, 256)),
            3 * 64 * (3 * 56 - 2) ** 2 * 256 * 256,
            id="convolution",
        ),
    ],
)
def test_large_products_are_priced_at_their_peak(step: Any, arguments: tuple[Any, ...], num_products: int) -> None:
    found = memprof.profile(step, *arguments, target="h100-80gb").report.roofline
    assert found is not None
    assert found.priced_share == 1.0
    assert found.compute_share * found.at_least_seconds == pytest.approx(2 * num_products / BF16_PEAK)
    assert found.communication_share == 0.0
