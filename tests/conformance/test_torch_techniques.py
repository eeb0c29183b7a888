"""The laws of a technique in a traced step of PyTorch: its evidence is in its step and in no step without it.

Sizes are counted by hand: the tiny Transformer has TINY_PARAMETERS, LINEAR_WEIGHTS of them in nine linear layers.
"""

from __future__ import annotations

import functools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from memprof.analysis.pipeline import analyze  # noqa: E402
from memprof.analysis.records.categories import Category  # noqa: E402
from memprof.analysis.records.report import Report  # noqa: E402
from memprof.errors import MemprofError  # noqa: E402
from memprof.profiler_cli.app import app  # noqa: E402
from memprof.studies.torch_step import capture_of_step, torch_target  # noqa: E402
from memprof.workloads import registry  # noqa: E402
from memprof.workloads.torch.build import build  # noqa: E402
from memprof.workloads.torch.evidence import verdicts  # noqa: E402
from memprof.workloads.torch.plan import OPTIMIZERS, OWN_TECHNIQUES, plan  # noqa: E402

pytestmark = pytest.mark.with_one_jax
LINEAR_WEIGHTS = 2 * 12 * 32**2 + 32 * 64
TINY_PARAMETERS = (64 + 24) * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32 + 32 * 64 + 64
# The baseline does these anyway.
RESTATED = {"fp32", "donate"}


def _applies(label: str) -> bool:
    try:
        plan("transformer", preset="tiny", overrides=(), techniques=label)
    except MemprofError:
        return False
    return True


# GELU keeps its input alone, so a checkpoint around it saves nothing: in PyTorch this technique has no effect.
WITHOUT_EFFECT = "remat-act"
SHARED = [each.example for each in registry.techniques() if each.evidence and not each.name.startswith("opt")]
TECHNIQUES = [
    *(label for label in SHARED if _applies(label)),
    *(f"opt={name}" for name in OPTIMIZERS if name != "adamw"),
    *OWN_TECHNIQUES,
]


@functools.cache
def report(label: str, workload: str = "transformer") -> Report:
    """The report of the tiny preset with a technique."""
    make = partial(build, plan(workload, preset="tiny", overrides=(), techniques=label))
    return analyze(capture_of_step(make, torch_target("t4")))


def test_the_techniques_are_those_that_pytorch_has() -> None:
    assert {*TECHNIQUES} >= {
        *("fp32", "bf16", "bf16-params", "fp16", "accum2", "donate", "flash", "chunked-loss=4", "offload-opt"),
        *("remat", "remat-mlp", "remat-attn", "remat-mlp-attn", "remat-act", "remat-dots"),
        *("prune=0.5", "prune-structured=0.5", "opt=galore", "opt=adam8bit", "opt=adafactor", "zero-grads"),
    }


@pytest.mark.parametrize("label", TECHNIQUES)
def test_its_evidence_is_in_its_step_alone(label: str) -> None:
    without, with_it = report(""), report(label)
    (found,) = verdicts(with_it, with_it.techniques, None if label in RESTATED else without)
    assert found.took_effect is (label != WITHOUT_EFFECT), found.evidence
    assert found.evidence.startswith(f"{label}: ")
    # A step in which the technique does nothing.
    (missing,) = verdicts(without, (label,), without)
    assert missing.took_effect is (label in RESTATED), missing.evidence


@pytest.mark.parametrize("label", TECHNIQUES)
def test_its_categories_add_up(label: str) -> None:
    found = report(label)
    assert sum(found.categories.values()) == found.footprint_bytes
    assert found.categories[Category.UNATTRIBUTED] == 0
    live = dict(found.timeline.base)
    most = sum(live.values())
    for change in found.timeline.changes:
        live[change.category] = live.get(change.category, 0) + change.delta_bytes
        assert live[change.category] >= 0
        most = max(most, sum(live.values()))
    assert most == found.live_peak_bytes


def test_masks_of_pruning_are_tensors_beside_the_weights() -> None:
    """`torch.nn.utils.prune` keeps weight_orig and weight_mask, both float32; moments are those of weight_orig."""
    found = report("prune=0.5").categories
    assert found[Category.PARAMS] == 4 * TINY_PARAMETERS
    assert found[Category.OTHER_STATE] == 4 * LINEAR_WEIGHTS
    assert found[Category.OPTIMIZER_STATE] == 8 * TINY_PARAMETERS


def test_heads_and_hidden_units_that_are_gone_take_nothing() -> None:
    """Half of the heads and hidden units: the four matrices of a block have half of their elements."""
    block = 6 * 32**2 + (3 * 16 + 32) + (64 + 32) + 4 * 32
    parameters = (64 + 24) * 32 + 2 * block + 2 * 32 + 32 * 64 + 64
    assert report("prune-structured=0.5").num_params == parameters


def test_an_offloaded_state_is_on_the_host_between_updates() -> None:
    found = report("offload-opt")
    counters = 4 * sum(leaf.role.value == "params" for leaf in found.arguments)  # they are there without it, too
    assert found.program.host_bytes == 8 * TINY_PARAMETERS + counters
    assert found.timeline.base.get(Category.OPTIMIZER_STATE, 0) == 0


def test_galore_keeps_a_projection_and_two_low_rank_moments() -> None:
    """Rank 8: of rows x columns, 32 x 8 of the projection and twice 8 times the longer side."""
    low = 2 * sum(32 * 8 + 2 * 8 * longer for longer in (96, 32, 128, 128)) + 32 * 8 + 2 * 8 * 64
    plain = 2 * (TINY_PARAMETERS - LINEAR_WEIGHTS)
    assert report("opt=galore").categories[Category.OPTIMIZER_STATE] == 4 * (low + plain)


def test_check_requires_the_effect_of_techniques(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    step = "check", "mlp", "--preset", "tiny", "--framework", "torch", "--require-effect", "-q"
    shown = CliRunner().invoke(app, [*step, "-t", "opt=galore+zero-grads", "--format", "json"])
    assert shown.exit_code == 0, shown.output
    # The hidden activation of the MLP is the only operation that remat-act could compute again; none is if it is off.
    monkeypatch.setattr("memprof.workloads.torch.networks._checkpointed", lambda function, *args, **_: function(*args))
    shown = CliRunner().invoke(app, [*step, "-t", "remat-act", "--format", "json"])
    assert shown.exit_code == 1, shown.output
    assert "no operation is recomputed" in json.dumps(json.loads(shown.stdout))


def test_a_comparison_says_which_technique_took_effect() -> None:
    rows = ["-t", "baseline", "-t", "bf16+accum2", "-t", "opt=galore"]
    command = ["compare", "mlp", "--preset", "tiny", "--framework", "torch", "--no-save", "--format", "json", "-q"]
    shown = CliRunner().invoke(app, [*command, *rows])
    assert shown.exit_code == 0, shown.output
    assert [each["took_effect"] for each in json.loads(shown.stdout)["effects"]] == [None, True, True]
