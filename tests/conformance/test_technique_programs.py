"""The laws of a technique, in the program that XLA compiles for a GPU that need not be there.

Its evidence is in its program and not in one without it; the categories that it declares shrink and grow; and the
report of its program still adds up with nothing left unexplained.
"""

from __future__ import annotations

import functools

import pytest

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.sources.jax.compile import capture_of
from memprof.sources.jax.targets.mesh import mesh_of, target_of_step
from memprof.sources.jax.targets.nvidia.tools import missing_for_deviceless
from memprof.sources.jax.targets.resolve import resolve, resolve_asked
from memprof.sources.jax.xla.xla_adapter import cudnn_of_absent_device
from memprof.workloads import registry
from memprof.workloads.build import build_step
from memprof.workloads.composition import parse_techniques, verdicts
from memprof.workloads.evidence import most_bytes
from memprof.workloads.technique import Observation
from memprof.workloads.train_config import inference_fields, model_fields

WITH_EVIDENCE = [technique for technique in registry.techniques() if technique.evidence is not None]
# Always, and with a second jax: one of each family, and those whose own part of the program changes between releases.
FIRST_OF_FAMILY = {technique.family: technique for technique in reversed(WITH_EVIDENCE)}.values()
WITH_EACH_JAX = {*(technique.name for technique in FIRST_OF_FAMILY), "remat-names", "remat-offload", "fp16"}
WITH_EACH_JAX -= {"pp"}  # test_stages_and_experts.py has a pipeline with each
TECHNIQUES = [
    pytest.param(
        technique,
        id=technique.name,
        marks=pytest.mark.with_each_jax if technique.name in WITH_EACH_JAX else pytest.mark.slow,
    )
    for technique in WITH_EVIDENCE
]
# Small, but with activations larger than the parameters, and with neither dropout nor its random generators to compile.
SIZES = {
    "transformer": (
        "batch_size=8",
        "seq_len=64",
        "max_seq_len=64",
        "hidden_size=64",
        "vocab_size=256",
        "dropout_rate=0",
        "attention_dropout_rate=0",
        "embedding_dropout_rate=0",
    ),
    "decoder": ("context_len=256", "prompt_len=64", "batch_size=8"),
    "mlp": ("batch_size=256", "input_size=64", "hidden_size=128", "num_classes=64", "dropout_rate=0"),
}
pytestmark = pytest.mark.skipif(
    bool(missing_for_deviceless()), reason="compiling for a GPU that is not there takes the extra `deviceless`"
)


@functools.cache
def capture(label: str, workload: str, axis: str | None, settings: tuple[str, ...]) -> Capture:
    """A small model's program for an H100, or for two of them along an axis."""
    target = resolve_asked("h100-80gb", mesh=axis and f"{axis}=2")
    with cudnn_of_absent_device(target):  # as in a child process
        spec = build_step(
            workload=workload,
            preset="tiny",
            overrides=(*SIZES[workload], *settings),
            techniques=[label] if label else [],
            mesh=mesh_of(target),
        )
    return capture_of(spec, target_of_step(spec, target), progress=lambda stage: None).capture


@functools.cache
def report(label: str, workload: str, axis: str | None, settings: tuple[str, ...]) -> Report:
    return analyze(capture(label, workload, axis, settings))


@pytest.fixture(params=TECHNIQUES)
def technique(request):
    """A technique that compiles for the target."""
    if request.param.check_target is not None:
        try:
            request.param.check_target(resolve("h100-80gb"))
        except MemprofError as error:
            pytest.skip(str(error))
    return request.param


def rows(technique) -> tuple[Report, Report]:
    """The reports without and with the technique, in the company that it needs to show, on a mesh if it needs one."""
    company = (*technique.needs, *technique.shows_with)
    # Of what devices share, the smallest model tells as much.
    of_transformers = technique.axis is None or set(technique.sets) & model_fields() - registry.workload("mlp").honours
    workload = "transformer" if of_transformers or technique.settings else "mlp"
    workload = "decoder" if set(technique.sets) & inference_fields() else workload
    without = report("+".join(company), workload, None, technique.settings)
    return without, report("+".join((*company, technique.example)), workload, technique.axis, technique.settings)


def test_its_evidence_is_in_its_program_alone(technique):
    without, with_it = rows(technique)
    (applied,) = parse_techniques(technique.example)
    found = technique.evidence(Observation(with_it, applied.argument, None if technique.restates_baseline else without))
    assert found.took_effect, found.evidence
    found = technique.evidence(Observation(without, applied.argument, without))
    assert found.took_effect == technique.restates_baseline, found.evidence
    assert found.evidence
    assert not found.evidence.endswith(".")


def test_the_categories_that_it_declares_shrink_and_grow(technique):
    without, with_it = rows(technique)
    for category in technique.shrinks:
        assert most_bytes(with_it, category) < most_bytes(without, category), category
    for category in technique.grows:
        assert most_bytes(with_it, category) > most_bytes(without, category), category


def test_nothing_in_its_program_is_unexplained(technique):
    _, with_it = rows(technique)
    assert with_it.categories[Category.UNATTRIBUTED] < 0.005 * with_it.footprint_bytes


def test_techniques_together_all_take_effect():
    label = "bf16+donate+scan+remat-mlp-attn+accum4+chunked-loss=4"
    found = verdicts(
        report(label, "transformer", None, ()), parse_techniques(label), report("", "transformer", None, ())
    )
    assert [verdict for verdict in found if not verdict.took_effect] == []
    assert len(found) == 6
