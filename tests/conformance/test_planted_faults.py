"""Techniques that are broken on purpose, compiled for real: their evidence must say that they took no effect."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Report
from memprof.sources.jax.compile import compile_step
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla.plan import with_plan
from memprof.workloads.build import build_step
from memprof.workloads.composition import parse_techniques, verdicts
from memprof.workloads.layers import checkpointed
from memprof.workloads.models.transformer import blocks
from memprof.workloads.models.transformer import network as transformer

pytestmark = pytest.mark.usefixtures("quick_compiles")
SIZES = ("seq_len=32", "max_seq_len=32", "num_layers=1", "dropout_rate=0")


def compiled(spec: StepSpec) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return analyze(
            with_plan(
                compile_step(spec, resolve("cpu"), dump_folder=Path(folder), progress=lambda _: None).planned
            ).capture
        )


def transformer_with(*techniques: str) -> Report:
    return compiled(build_step(workload="transformer", preset="tiny", overrides=SIZES, techniques=techniques))


@functools.cache
def baseline() -> Report:
    return transformer_with("baseline")


def judge(report: Report, reference: Report | None = None):
    (verdict,) = verdicts(report, parse_techniques(*report.techniques), reference)
    return verdict


def test_a_checkpoint_around_the_wrong_module(monkeypatch):
    others = {"mlp": "attention", "attention": "mlp"}
    monkeypatch.setattr(blocks, "checkpointed", lambda module, part, config: checkpointed(module, others[part], config))
    verdict = judge(transformer_with("remat-mlp"), baseline())
    assert not verdict.took_effect
    assert "of attention, where they were expected of mlp alone" in verdict.evidence


def test_a_checkpoint_around_the_last_norm_alone(monkeypatch):
    monkeypatch.setattr(transformer, "checkpointed", lambda module, part, config: module)
    monkeypatch.setattr(transformer, "norm", lambda config, train_config: nn.remat(nn.LayerNorm)())
    report = transformer_with("remat")
    assert report.program.num_recomputed_operations > 0
    verdict = judge(report, baseline())
    assert not verdict.took_effect
    assert "nothing of attention and mlp is computed again" in verdict.evidence


def test_an_accumulation_of_one():
    assert not judge(transformer_with("accum1")).took_effect
    assert not judge(transformer_with("accum1-loop")).took_effect


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # so JAX says, but not each version of it
def test_a_donated_buffer_that_cannot_be_reused():
    def step(state, batch):
        return (state + batch).astype(jnp.bfloat16)

    spec = StepSpec(
        fn=step,
        args=(jax.ShapeDtypeStruct((64,), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.float32)),
        roles={"state": Role.PARAMS, "batch": Role.BATCH},
        donate_argnums=(0,),
        techniques=("donate",),
    )
    verdict = judge(compiled(spec))
    assert not verdict.took_effect
    assert "but 256 B are donated" in verdict.evidence
