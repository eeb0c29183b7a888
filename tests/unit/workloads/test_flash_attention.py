"""Fused attention computes what plain attention does; and where it cannot be had, one sentence says so."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.xla_adapter import cudnn_of_absent_device
from memprof.workloads import registry
from memprof.workloads.build import plan
from memprof.workloads.models.transformer import attention as flash
from memprof.workloads.models.transformer.attention import (
    attention_probabilities,
    causal_mask,
    combine_masks,
    padding_mask,
)

pytestmark = pytest.mark.usefixtures("quick_compiles")

IS_REAL = jnp.array([[True] * 5, [True] * 3 + [False] * 2])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_it_attends_to_what_plain_attention_does(monkeypatch, causal, padded):
    # The same call of JAX in its other implementation, since this one takes a GPU: masks and scale are what is tested.
    monkeypatch.setattr(flash, "_IMPLEMENTATION", "xla")
    monkeypatch.setattr(flash, "require_cudnn", lambda: None)
    query, key, value = jax.random.normal(jax.random.PRNGKey(0), (3, 2, 5, 2, 8))
    lengths = flash.real_lengths(IS_REAL) if padded else None
    attended = flash.flash_attention(query, key, value, causal=causal, lengths=lengths)
    mask = combine_masks(causal_mask(5) if causal else None, padding_mask(IS_REAL) if padded else None)
    expected = jnp.einsum("bhqk,bkhd->bqhd", attention_probabilities(query, key, mask), value)
    is_counted = IS_REAL if padded else jnp.ones_like(IS_REAL)
    np.testing.assert_allclose(attended[is_counted], expected[is_counted], rtol=1e-5, atol=1e-6)


def test_an_absent_gpu_takes_no_cudnn(monkeypatch):
    monkeypatch.setattr(flash, "cudnn_version", lambda: None)
    (technique,) = (technique for technique in registry.techniques() if technique.name == "flash")
    technique.check_target(resolve("h100-80gb"))
    with pytest.raises(MemprofError, match="install nvidia-cudnn-cu13"):
        technique.check_target(replace(resolve("h100-80gb"), compiler_config=""))


def test_attention_is_traced_for_the_cudnn_of_the_target():
    with cudnn_of_absent_device(resolve("h100-80gb")):
        assert flash.cudnn_version() == 91002  # `dnn_version_info` of the catalogue
    with cudnn_of_absent_device(replace(resolve("l4"), compiler_config="dnn_version_info: { major: 9 minor: 8 }")):
        assert flash.cudnn_version() == 90800
    with cudnn_of_absent_device(replace(resolve("l4"), compiler_config="")):
        assert flash.cudnn_version() != 90800


def test_lengths_count_the_real_tokens():
    assert flash.real_lengths(IS_REAL).tolist() == [5, 3]


def test_without_cudnn_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(flash, "cudnn_version", lambda: None)
    with pytest.raises(MemprofError, match=r"needs the cuDNN library.*install nvidia-cudnn-cu13"):
        flash.require_cudnn()


@pytest.mark.parametrize(("platform", "capability"), [("cpu", None), ("cuda", "7.0"), ("cuda", "7.5")])
def test_a_target_without_the_kernel_is_refused(platform, capability):
    target = Target(
        name="old", description="", platform=platform, memory_bytes=None, compute_capability=capability, reason=""
    )
    (technique,) = (technique for technique in registry.techniques() if technique.name == "flash")
    with pytest.raises(MemprofError, match=r"compute capability 8\.0 or more, and old is not one"):
        technique.check_target(target)


@pytest.mark.parametrize(
    ("techniques", "overrides", "fragment"),
    [
        ("flash", ["attention_dropout_rate=0"], "add bf16 or fp16"),
        ("bf16+flash", ["attention_dropout_rate=0.1"], "attention_dropout_rate is 0.1"),
        ("bf16+flash", ["attention_dropout_rate=0", "custom_mask=true"], "custom_mask is true"),
        ("bf16+flash", ["attention_dropout_rate=0", "head_size=12"], "heads are 12 wide"),
        ("bf16+flash", ["attention_dropout_rate=0", "head_size=256"], "heads are 256 wide"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(techniques, overrides, fragment):
    with pytest.raises(MemprofError) as error:
        plan(workload="transformer", preset="tiny", overrides=overrides, techniques=[techniques])
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)
