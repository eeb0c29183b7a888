"""Advice on real programs: steps with one inefficiency planted, compiled for a GPU before and after the advice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import planted
import pytest
from integration.command import Command
from integration.test_command_line import WITHOUT_JAX
from jsonschema import Draft202012Validator
from made_compiles import Commands

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.api import profile_spec
from memprof.studies.advice.advice import Advice
from memprof.studies.advice.advise import advise, predicted_saving
from memprof.studies.advice.what_if import footprint_without
from memprof.workloads.intents import Aim, Intent, means_to

# optax calls it itself, in `adafactor`.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
TARGET = "h100-80gb"

# The rule that has to find each.
EXPECTED = {
    "state_not_donated": "donate_state",
    "float32_activations": "half_precision",
    "whole_logits": "chunked_loss",
    "attention_probabilities": "flash_attention",
    "residuals_of_blocks": "remat_modules",
    "residuals_of_a_scan": "remat_scan",
    "copies_of_parameters": "param_copies",
    "state_of_adam": "factored_optimizer",
    "float32_accumulators": "narrow_accumulators",
    "one_huge_array": "huge_buffer",
    "peak_in_the_update": "update_peak",
    "deferred_weight_gradients": "other_order",
}
# These are found too, though they do not save most.
ALSO_EXPECTED = {"attention_probabilities": "remat_elementwise", "state_that_waits": "offload_optimizer"}
# How far a saving may be from that of the followed recipe: XLA also reorders what is recomputed, and saves more.
TOLERANCE = {"remat_elementwise": 0.2}
FOLLOWED = [*EXPECTED.items(), *ALSO_EXPECTED.items()]
# What is said in words, done in the planted steps.
_BY_HAND = {
    "chunked_loss": "loss = jax.lax.map(jax.checkpoint(loss_of_chunk), (hidden_chunks, label_chunks)).sum()",
    "flash_attention": "attended = jax.lax.map(jax.checkpoint(lambda block: attend(block, k, v)), blocks_of_q)",
    "half_precision": "params, batch = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (params, batch))",
    "huge_buffer": "ys = jax.lax.map(jax.checkpoint(f), xs, batch_size=max(1, len(xs) // {num_parts}))",
    "other_order": "operands = operands",
    "param_copies": "block = jax.checkpoint(lambda params, x: apply(jax.tree.map(to_bfloat16, params), x))",
    "update_peak": "updates = jax.tree.map(update_one, gradients, params)",
}
# The code for these is not what the planted step needs: cuDNN is absent, and the copies are more than casts.
_OTHERWISE = {"flash_attention", "param_copies"}


class Reports(dict[tuple[str, str], Report]):
    """Reports by step and rule, each compiled on first use: with a rule, the step contains its recommended code."""

    def __missing__(self, key: tuple[str, str]) -> Report:
        name, rule = key
        recipe = _recipe(self[name, ""], rule) if rule else ""
        self[key] = profile_spec(getattr(planted, name)(recipe), target=TARGET).report
        return self[key]


@pytest.fixture(scope="module")
def reports() -> Reports:
    return Reports()


def _recipe(report: Report, rule: str) -> str:
    proposal = _advice(report, rule).proposal
    by_hand = _BY_HAND.get(rule, "").format(num_parts=proposal.intent.num_parts)
    assert bool(by_hand) != bool(proposal.code_to_paste) or rule in _OTHERWISE
    return by_hand or proposal.code_to_paste


def _code(aim: Aim, dtype: str = "") -> str:
    return means_to(Intent(aim=aim, dtype=dtype)).code


def _advice(report: Report, rule: str) -> Advice:
    return next(advice for advice in advise(report) if advice.rule == rule)


@pytest.mark.parametrize(("name", "rule"), EXPECTED.items())
def test_the_planted_inefficiency_comes_first(reports: Reports, name: str, rule: str) -> None:
    assert advise(reports[name, ""])[0].rule == rule


@pytest.mark.parametrize(("name", "rule"), FOLLOWED)
@pytest.mark.slow_cases
def test_a_followed_recipe_saves_what_is_said(reports: Reports, name: str, rule: str) -> None:
    saved_bytes = reports[name, ""].footprint_bytes - reports[name, rule].footprint_bytes
    advice, tolerance = _advice(reports[name, ""], rule), TOLERANCE.get(rule, 0.1)
    assert predicted_saving(reports[name, ""], advice.proposal) == pytest.approx(saved_bytes, rel=tolerance)
    assert saved_bytes <= (1 if rule == "half_precision" else 1 + tolerance) * advice.bound_bytes


@pytest.mark.parametrize(("name", "rule"), FOLLOWED)
@pytest.mark.slow_cases
def test_a_followed_recipe_leaves_little_more_to_say(reports: Reports, name: str, rule: str) -> None:
    before, after = (
        sum(advice.saving_bytes for advice in advise(report) if advice.rule == rule)
        for report in (reports[name, ""], reports[name, rule])
    )
    assert after < before / 4


def test_a_program_with_nothing_to_save_gets_no_advice(reports: Reports) -> None:
    """Donated, bfloat16, checkpointed, without optimizer state."""
    assert advise(reports["residuals_of_blocks", "remat_modules"]) == ()


@pytest.mark.parametrize(("name", "rule"), FOLLOWED)
def test_evidence_supports_the_saving_and_is_within_the_footprint(reports: Reports, name: str, rule: str) -> None:
    assert advise(reports[name, ""])
    for report in (reports[name, ""], reports[name, rule]):
        for advice in advise(report):
            evidence = [
                int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes", advice.proposal.evidence)
            ]
            # Another update may also have fewer temporaries and leave fewer gaps.
            beside_bytes = report.categories[Category.UPDATE_TEMPS] + report.categories[Category.FRAGMENTATION]
            assert max(evidence) <= report.footprint_bytes, advice.rule
            assert advice.saving_bytes <= max(evidence) + beside_bytes, advice.rule


@pytest.mark.parametrize(("name", "dtype"), [("bf16", jnp.bfloat16), ("f32", jnp.float32)])
def test_the_kernel_takes_what_the_line_gives_it(monkeypatch: pytest.MonkeyPatch, name: str, dtype: Any) -> None:
    """JAX checks shapes and types while tracing; the library that it asks for its version then need not be there."""
    line = _code(Aim.FUSE_ATTENTION, name)
    q = jax.ShapeDtypeStruct((2, 128, 4, 64), dtype)
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    attended = jax.eval_shape(lambda q, k, v: planted.followed(line, q=q, k=k, v=v)["attended"], q, q, q)
    assert (attended.shape, attended.dtype) == (q.shape, jnp.bfloat16)


def test_the_compiler_knows_the_option_against_scratch_memory() -> None:
    ((option, value),) = re.findall(r"--(\w+)=(\w+)", _code(Aim.GENERATE_PRODUCTS))
    lowered = jax.jit(jnp.tanh).lower(jax.ShapeDtypeStruct((8,), jnp.float32))
    lowered.compile(compiler_options={option: value != "false"})  # raises for options that there are not
    with pytest.raises(jax.errors.JaxRuntimeError):
        lowered.compile(compiler_options={f"{option}_not": False})


@pytest.mark.parametrize(("name", "rule"), FOLLOWED)
def test_a_timeline_played_again_unchanged_gives_the_footprint(reports: Reports, name: str, rule: str) -> None:
    for report in (reports[name, ""], reports[name, rule]):
        assert footprint_without(report, lambda buffer: None) == report.footprint_bytes


def test_advice_of_a_saved_capture_needs_no_jax(memprof: Command, capture_path: Path) -> None:
    shown = memprof("advise", capture_path, **memprof.run_before_start(WITHOUT_JAX))
    assert shown.returncode == 0, shown.stderr
    assert "Possible changes" in shown.stdout


def test_advice_as_json_is_valid_and_that_of_the_report(memprof: Command, capture_path: Path) -> None:
    advice = json.loads(memprof("advise", capture_path, "--format", "json").stdout)
    report = json.loads(memprof("show", capture_path, "--format", "json").stdout)
    Draft202012Validator(json.loads((SCHEMAS / "advice.schema.json").read_text())).validate(advice)
    assert advice["advice"] == report["advice"] != []


@pytest.mark.with_one_jax
def test_verified_advice_is_compiled(memprof: Command) -> None:
    step = ("run", "mlp", "--preset", "tiny", "--target", "cpu", "--no-save", "--format", "json")
    ran = memprof(*step, "--advise", "--verify")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    compiled = [advice for advice in report["advice"] if advice["is_compiled"]]
    assert compiled
    other = json.loads(memprof(*step, "-t", compiled[0]["technique"]).stdout)
    assert compiled[0]["footprint_after_bytes"] == other["footprint_bytes"]
    assert compiled[0]["saving_bytes"] == report["footprint_bytes"] - other["footprint_bytes"]


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_advice_for_a_mesh_is_compiled_for_what_a_device_holds(memprof: Command) -> None:
    step = ("mlp", "--preset", "tiny", "-t", "fsdp", "--mesh", "fsdp=2", "--target", "h100-80gb", "--format", "json")
    advised = memprof("advise", *step)
    assert advised.returncode == 0, advised.stderr
    answer = json.loads(advised.stdout)
    device = json.loads(memprof("run", *step, "--no-save").stdout)
    assert device["mesh"]["axes"] == {"fsdp": 2}
    assert answer["footprint_bytes"] == device["footprint_bytes"]
    assert any(each["is_compiled"] for each in answer["advice"])


def test_there_is_nothing_to_verify_without_advice(in_process: Commands) -> None:
    refused = in_process("run", "mlp", "--verify")
    assert (refused.code, refused.asked) == (2, ())
    assert "--advise" in refused.stderr
