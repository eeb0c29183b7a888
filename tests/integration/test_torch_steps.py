"""Steps of PyTorch through the command line and the API: built-in ones, the user's own, and beside those of JAX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import memprof
from memprof.profiler_cli.app import app

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

USER_STEP = """
import torch
import memprof

def torch_spec(width: int = 8):
    model = torch.nn.Linear(4, width).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.zeros(2, 4, device="cuda")
    return memprof.TorchStepSpec(model=model, optimizer=optimizer, loss_fn=lambda m, b: m(b).sum(), batch=batch)
"""
# tiny: embeddings (64 + 24) x 32; two blocks of 12 h^2 + 13 h with h = 32; final norm 2 h; head 32 x 64 + 64.
TINY_PARAMETERS = (64 + 24) * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32 + 32 * 64 + 64


def _report(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["run", *arguments, "--framework", "torch", "--format", "json", "-q", "--no-save"])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def _check_sums(report: dict[str, Any]) -> None:
    categories = report["categories"]
    assert report["framework"] == "torch"
    assert sum(categories.values()) == report["footprint_bytes"] == report["allocator"]["reserved_bytes"]
    assert report["live_peak_bytes"] == report["footprint_bytes"] - categories["fragmentation"]
    assert sum(each["size_bytes"] for each in report["buffers"]) == report["live_peak_bytes"]
    assert categories["unattributed"] == 0


# The bytes of a parameter and of AdamW's two moments.
@pytest.mark.parametrize(
    ("techniques", "param_bytes"),
    [
        ("baseline", 4),
        ("bf16", 4),
        ("fp16+accum2+remat+zero-grads+no-foreach", 4),
        ("bf16-params", 2),
        ("remat-dots", 4),
        ("remat-mlp-attn+remat-act", 4),
        ("flash+bf16", 4),
        ("flash+fp32", 4),
        ("chunked-loss=4", 4),
    ],
)
def test_techniques_keep_parameters_and_state_by_arithmetic(techniques: str, param_bytes: int) -> None:
    report = _report("transformer", "--preset", "tiny", "-t", techniques)
    _check_sums(report)
    assert report["num_params"] == TINY_PARAMETERS
    assert report["categories"]["params"] == param_bytes * TINY_PARAMETERS
    assert report["categories"]["optimizer_state"] == 2 * param_bytes * TINY_PARAMETERS


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("sgd", 0), ("adam", 2), ("adamw", 2), ("adagrad", 1), ("rmsprop", 1)]
)
def test_the_state_of_an_optimizer_by_arithmetic(optimizer: str, moments: int) -> None:
    report = _report("mlp", "--preset", "tiny", "-t", f"opt={optimizer}")
    _check_sums(report)
    params = 12 * 32 + 32 + 2 * 32 + 32 * 4 + 4
    assert report["categories"]["optimizer_state"] == 4 * moments * params


def test_a_checkpointed_block_keeps_its_input_alone() -> None:
    def kept(techniques: str) -> int:
        report = _report("transformer", "--preset", "tiny", "-t", techniques, "--set", "num_layers=6")
        return int(report["categories"]["activations"])

    assert kept("remat+no-foreach") < kept("remat-dots+no-foreach") < kept("no-foreach")


def test_the_users_own_step(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(USER_STEP)
    report = _report(f"{file}:torch_spec", "--set", "width=16")
    _check_sums(report)
    params = 4 * 16 + 16
    assert (report["num_params"], report["config"]["width"]) == (params, 16)
    assert report["categories"]["optimizer_state"] == 4 * params
    assert report["label"] == "train:torch_spec"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mlp", "-t", "scan"], "Technique 'scan' does not apply to mlp in PyTorch"),
        (["mlp", "-t", "flash"], "Technique 'flash' does not apply to mlp in PyTorch"),
        (["mlp", "-t", "opt=lion"], "has no PyTorch version here"),
        (["transformer", "--preset", "tiny-moe"], "the PyTorch transformer has no experts"),
        (["mlp", "--preset", "tiny", "-t", "accum5"], "batch_size is 16, which 5 minibatches do not divide"),
        (["mlp", "-t", "zero-grads+zero-grads"], "Technique 'zero-grads' is given twice"),
        (["mlp", "--target", "local"], "a step of PyTorch is traced and not run here"),
        (["mlp", "--steps", "2"], "--steps is for steps of JAX"),
        (["mlp", "--mesh", "fsdp=2"], "--mesh is for steps of JAX"),
    ],
)
def test_a_wrong_choice_gets_a_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["run", *arguments, "--framework", "torch"])
    assert isinstance(result.exception, memprof.MemprofError)
    assert sentence in str(result.exception)


def test_both_frameworks_side_by_side_have_the_same_parameters() -> None:
    arguments = ["mlp", "--preset", "tiny", "-t", "baseline", "--framework", "jax", "--framework", "torch"]
    result = CliRunner().invoke(app, ["compare", *arguments, "--target", "cpu", "--no-save", "--format", "json", "-q"])
    assert result.exit_code == 0, result.output
    jax_row, torch_row = json.loads(result.stdout)["rows"]
    assert (jax_row["framework"], torch_row["framework"]) == ("jax", "torch")
    assert jax_row["num_params"] == torch_row["num_params"]
    assert jax_row["categories"]["params"] == torch_row["categories"]["params"]
    # optax counts steps on the device, in an int32; PyTorch does so on the host.
    assert jax_row["categories"]["optimizer_state"] == torch_row["categories"]["optimizer_state"] + 4


def test_a_step_whose_model_exists_is_profiled_on_its_shapes(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 8)
    before = model.weight.clone()
    spec = memprof.TorchStepSpec(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=lambda model, batch: model(batch).sum(),
        batch=torch.zeros(2, 4),
    )
    profile = memprof.profile_torch(spec, target="t4", label="mine")
    assert profile.by("category")["params"] == 4 * (4 * 8 + 8)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    assert "t4" in str(profile)
    path = profile.save(tmp_path / "step.memprof")
    assert memprof.load(path).report.categories == profile.report.categories


def test_what_the_users_code_raises_is_a_workload_error() -> None:
    def broken() -> memprof.TorchStepSpec:
        raise ValueError("no such data")

    with pytest.raises(memprof.WorkloadError, match="the step failed while it was traced: ValueError: no such data"):
        memprof.profile_torch(broken)
