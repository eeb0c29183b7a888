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
        ("save-on-cpu", 4),
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


def test_the_state_of_8_bit_adam_is_that_of_jax() -> None:
    # Tensors of 4096 elements or more: a byte an element, and a scale a block of 256, for each of two moments. Tiny has
    # no embedding of that size, and in both blocks only the matrix of the MLP, 32 x 128, twice: up and down.
    report = _report("transformer", "--preset", "tiny", "-t", "opt=adam8bit")
    _check_sums(report)
    large = 2 * 2 * 32 * 128
    assert report["categories"]["optimizer_state"] == 2 * (large + 4 * large // 256 + 4 * (TINY_PARAMETERS - large))


def test_a_fused_update_has_no_temporaries_and_counts_on_the_device() -> None:
    report = _report("mlp", "--preset", "tiny", "-t", "fused")
    params = 12 * 32 + 32 + 2 * 32 + 32 * 4 + 4
    assert report["categories"]["optimizer_state"] == 8 * params + 4 * 6  # a counter for each of six parameters
    assert report["categories"]["update_temps"] == 0


@pytest.mark.parametrize(
    ("target", "config", "size_bytes"),
    [
        ("h100-80gb", "", 8 * 4096 * 1024),
        ("a100-40gb", "", (2 * 4096 + 8 * 16) * 1024),
        ("h100-80gb", ":16:8", 8 * 16 * 1024),
        ("h100-80gb", ":0:0", 0),
        ("cpu", "", 0),
    ],
)
def test_each_thread_that_calls_cublas_has_a_workspace(
    monkeypatch: pytest.MonkeyPatch, target: str, config: str, size_bytes: int
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    report = _report("mlp", "--preset", "tiny", "--target", target)
    _check_sums(report)
    # The thread of the forward pass, and autograd's: both exist before the peak of the second step.
    assert report["categories"].get("workspace", 0) == 2 * size_bytes


def test_what_autograd_saves_on_the_host_is_not_on_the_device() -> None:
    def kept(techniques: str) -> int:
        report = _report("transformer", "--preset", "tiny", "-t", techniques, "--set", "num_layers=6")
        return int(report["categories"]["activations"])

    assert kept("save-on-cpu+no-foreach") < kept("no-foreach") / 4


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
        (
            ["mlp", "--preset", "tiny", "-t", "accum5"],
            "the batch of a device is 16, which is not divisible by 5 minibatches",
        ),
        (["mlp", "-t", "fused+no-foreach"], "'fused' and 'no-foreach' exclude each other"),
        (["mlp", "-t", "fused+opt=rmsprop"], "PyTorch has no fused rmsprop"),
        (["mlp", "-t", "zero-grads+zero-grads"], "Technique 'zero-grads' is given twice"),
        (["mlp", "--target", "local"], "PyTorch steps are traced and do not run here"),
        (["mlp", "--steps", "2"], "--steps applies to compiled JAX steps"),
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


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, "-q"])
    return result.exit_code, result.stdout + str(result.exception or "")


def test_a_capture_of_a_trace_goes_through_the_commands_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")  # otherwise workspaces are most of so small a step
    mlp = "mlp", "--preset", "tiny", "--framework", "torch"
    assert _run("run", *mlp)[0] == 0
    capture = "mlp-torch-tiny-h100-80gb.memprof"
    code, shown = _run("show", capture, "--format", "json")
    assert code == 0
    _check_sums(json.loads(shown))
    code, page = _run("show", capture, "-o", "r.html")
    assert (code, (tmp_path / "r.html").exists()) == (0, True), page
    assert _run("check", capture, "--max", "2MiB")[0] == 0
    assert _run("check", capture, "--max", "1MiB")[0] == 1
    assert "beside the CUDA context" in _run("check", capture, "--fits", "t4")[1]
    assert _run("compare", *mlp, "-t", "baseline", "-t", "bf16")[0] == 0
    assert sorted(path.name for path in (tmp_path / "compare-mlp-tiny-torch").iterdir()) == [
        "mlp-torch-tiny-baseline-h100-80gb.memprof",
        "mlp-torch-tiny-bf16-h100-80gb.memprof",
    ]
    assert _run("compare", "compare-mlp-tiny-torch")[0] == 0
    profile = memprof.load(capture)
    assert memprof.fits(profile)
    assert not memprof.fits(profile, memory="1MiB")
    assert list(profile.advice) == []


def test_a_step_of_pytorch_is_checked_against_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mlp = "check", "mlp", "--preset", "tiny", "--framework", "torch", "--against", "base.json"
    assert _run(*mlp, "--update")[0] == 0
    assert _run(*mlp)[0] == 0
    assert _run(*mlp, "--set", "batch_size=65536")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["advise"], "advice names changes of JAX code"),
        (["show", "--why", "mm"], "only a compiled program shows why a buffer is live"),
        (["show", "--format", "xprof", "-o", "logs"], "XProf shows only compiled programs"),
    ],
)
def test_commands_that_need_a_compiled_program_refuse_a_trace(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run("run", "mlp", "--preset", "tiny", "--framework", "torch", "-t", "zero-grads", "-o", "c.memprof")[0] == 0
    code, message = _run(*("c.memprof" if each == "CAPTURE" else each for each in arguments))
    assert code != 0
    assert sentence in message


def test_softmax_input_reaches_the_built_in_transformer() -> None:
    def kept(techniques: str) -> int:
        report = _report("transformer", "--preset", "tiny", "-t", techniques)
        return sum(each["size_bytes"] for each in report["buffers"] if each["category"] == "activations")

    assert kept("no-foreach+softmax-input") > kept("no-foreach")


def test_what_the_users_code_raises_is_a_workload_error() -> None:
    def broken() -> memprof.TorchStepSpec:
        raise ValueError("no such data")

    with pytest.raises(memprof.WorkloadError, match="the step failed while it was traced: ValueError: no such data"):
        memprof.profile_torch(broken)


@pytest.mark.parametrize(
    ("step", "field"),
    [(("mlp", "-t", "accum2"), "batch_size"), (("train.py:torch_spec", "--set", "width=65536"), "width")],
)
def test_the_largest_value_is_traced_and_so_is_the_next(
    step: tuple[str, ...], field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are judged as `memprof run` does: what is reserved, beside the CUDA context."""
    (tmp_path / "train.py").write_text(USER_STEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    options = ("--framework", "torch", "--target", "l4", "--format", "json", "--no-save")
    fitted = CliRunner().invoke(app, ["fit", *step, "--vary", field, *options])
    assert fitted.exit_code == 0, fitted.output
    found = json.loads(fitted.stdout)
    assert found["field"] == field
    assert found["next_value"] - found["value"] == found["step"] == (2 if "mlp" in step else 1)
    name, others = step[0], [each for each in step[1:] if "width" not in each and each != "--set"]
    for value, fits in ((found["value"], True), (found["next_value"], False)):
        report = _report(name, *others, "--target", "l4", "--set", f"{field}={value}")
        assert report["fits"] is fits
        assert (report["footprint_bytes"] <= found["budget_bytes"]) is fits
    assert found["command"].startswith(f"memprof run {name} --framework torch --target l4")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mlp", "-t", "auto"], "but auto chooses among techniques that XLA compiles"),
        (["mlp", "--mesh", "8"], "a PyTorch step is divided over one axis"),
        (["train.py", "--mesh", "dp=8"], "--mesh is for a function that returns a memprof.TorchStepSpec"),
        (["train.py", "--framework", "jax"], "train.py is written with PyTorch: leave out --framework jax"),
        (["train.py"], "train ended without calling an optimizer's step()"),
        (["mlp", "--vary", "depths"], "depths"),
    ],
)
def test_a_fit_that_cannot_be_is_refused(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(USER_STEP.replace("torch_spec", "make"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    framework = () if "--framework" in arguments else ("--framework", "torch")
    code, message = _run("fit", *arguments, *framework)
    assert code != 0
    assert sentence in message


SCRIPT = """
import torch
model = torch.nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(8, 16).cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("step", ["train.py", "step.py:torch_spec"])
def test_a_comparison_of_the_users_step_without_techniques_has_one_row(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "step.py").write_text(USER_STEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, shown = _run("compare", step, "--no-save", "--format", "json")
    assert code == 0, shown
    comparison = json.loads(shown)
    assert [row["framework"] for row in comparison["rows"]] == ["torch"]
    assert comparison["baseline"] == f"{step} (torch)"


def test_an_encoder_with_padding_keeps_what_bert_keeps_in_half_precision() -> None:
    """As in transformers: scores with a float32 mask are float32, and each of three projections keeps its input."""
    sizes = "num_layers=4", "seq_len=64", "batch_size=4", "hidden_size=64", "num_heads=4", "vocab_size=50"
    overrides = [part for each in sizes for part in ("--set", each)]
    report = _report("transformer", "--preset", "bert-large", *overrides, "-t", "fp16+no-foreach+softmax-input")
    kept = [each for each in report["buffers"] if each["category"] == "activations"]
    squares = [each for each in kept if each["dtype"] == "f32" and each["size_bytes"] == 4 * 4 * 4 * 64 * 64]
    assert len(squares) == 4 * 2  # in each layer, the input of softmax and its result
    for name in ("query", "key", "value"):
        assert any(
            each["module"] == f"layers/0/attention/{name}" and each["size_bytes"] == 2 * 4 * 64 * 64 for each in kept
        )


@pytest.mark.parametrize("optimizer", ["galore", "adam8bit"])
def test_the_state_of_an_optimizer_of_ours_is_that_of_jax(optimizer: str) -> None:
    import jax

    from memprof.workloads.build import build_trainer
    from memprof.workloads.build import plan as plan_of_jax

    choices = plan_of_jax(workload="transformer", preset="tiny", overrides=[], techniques=[f"opt={optimizer}"])
    leaves = jax.tree.leaves(build_trainer(choices).abstract_state().opt_state)
    counters = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if not leaf.shape)
    expected = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) - counters
    state = _report("transformer", "--preset", "tiny", "-t", f"opt={optimizer}")["categories"]["optimizer_state"]
    assert state == expected
