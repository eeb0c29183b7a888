"""Engines of TensorRT for RTX: their memory by hand, and the commands with --engine tensorrt."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memprof.analysis.records.engine import Engine
from memprof.profiler_cli.app import app
from memprof.sources.tensorrt.build import build_engine
from memprof.sources.tensorrt.request import BuildRequest

models: Any = pytest.importorskip("onnx_models", reason="onnx is not installed (the extra tensorrt)")
pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed (the extra tensorrt)")

# Of TensorRT for RTX 1.7.1: scales and the like beside the weights, and a workspace that every engine has.
SCALARS, WORKSPACE = 256, 8_192_000


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """A model, and what its engine should hold.

    Attributes:
        parts: of the model's builder.
        num_weights, weight_size: elements, and bytes of each.
        live_bytes: activation memory without the workspace.
    """

    parts: tuple[Any, ...]
    num_weights: int
    weight_size: int
    live_bytes: int


def _block_bytes(batch: int, length: int, width: int, size: int) -> int:
    return batch * length * width * size


MODELS = {
    # Between two products there is one array; between three, two of them are live at once.
    "two products": ByHand(
        parts=((512, 2048, 512), 32, "float32"),
        num_weights=2 * 512 * 2048,
        weight_size=4,
        live_bytes=32 * 2048 * 4,
    ),
    "three products": ByHand(
        parts=((1024, 4096, 4096, 1024), 64, "float32"),
        num_weights=2 * 1024 * 4096 + 4096**2,
        weight_size=4,
        live_bytes=2 * 64 * 4096 * 4,
    ),
    "a large batch": ByHand(
        parts=((1024, 4096, 4096, 1024), 1024, "float32"),
        num_weights=2 * 1024 * 4096 + 4096**2,
        weight_size=4,
        live_bytes=2 * 1024 * 4096 * 4,
    ),
    "three products in float16": ByHand(
        parts=((1024, 4096, 4096, 1024), 64, "float16"),
        num_weights=2 * 1024 * 4096 + 4096**2,
        weight_size=2,
        live_bytes=2 * 64 * 4096 * 2,
    ),
    "four products in float16": ByHand(
        parts=((256, 1024, 1024, 1024, 256), 128, "float16"),
        num_weights=2 * 256 * 1024 + 2 * 1024**2,
        weight_size=2,
        live_bytes=2 * 128 * 1024 * 2,
    ),
    # A block: 7 arrays of the residual stream's size, and 6 where that is 4 MiB. Attention is fused.
    "a block": ByHand(
        parts=(4, 256, 512, 1, "float16"),
        num_weights=12 * 512**2 + 4 * 512,
        weight_size=2,
        live_bytes=7 * _block_bytes(4, 256, 512, 2),
    ),
    "two blocks": ByHand(
        parts=(2, 128, 256, 2, "float16"),
        num_weights=2 * (12 * 256**2 + 4 * 256),
        weight_size=2,
        live_bytes=7 * _block_bytes(2, 128, 256, 2),
    ),
    "a block with long sequences": ByHand(
        parts=(8, 512, 512, 1, "float16"),
        num_weights=12 * 512**2 + 4 * 512,
        weight_size=2,
        live_bytes=6 * _block_bytes(8, 512, 512, 2),
    ),
}


def _engine(path: Path, folder: Path, **request: Any) -> Engine:
    (folder / "build").mkdir()
    wanted = BuildRequest(model=str(path), name=path.stem, compute_capability=(8, 9), **request)
    return build_engine(wanted, folder / "build").engine


def _command(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "-q"])


def _report(*arguments: str) -> dict[str, Any]:
    ended = _command("run", *arguments, "--engine", "tensorrt", "--target", "rtx-4090", "--format", "json", "--no-save")
    assert ended.exit_code == 0, ended.output
    report: dict[str, Any] = json.loads(ended.stdout)
    _check_sums(report)
    return report


def _check_sums(report: dict[str, Any]) -> None:
    engine, categories = report["engine_memory"], report["categories"]
    parts = ("weights", "activation", "input", "output", "persistent")
    assert report["engine"] == "tensorrt"
    assert sum(categories.values()) == sum(engine[f"{part}_bytes"] for part in parts) == report["footprint_bytes"]
    assert sum(each["size_bytes"] for each in report["buffers"]) == report["footprint_bytes"]
    assert categories["params"] == engine["weights_bytes"]
    assert categories["forward_temps"] + categories["workspace"] == (
        engine["activation_bytes"] + engine["persistent_bytes"]
    )
    assert categories["unattributed"] == 0


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_activation_memory_are_those_by_hand(name: str, tmp_path: Path) -> None:
    wanted = MODELS[name]
    build = models.mlp if isinstance(wanted.parts[0], tuple) else models.transformer
    engine = _engine(build(tmp_path / "model.onnx", *wanted.parts), tmp_path)
    assert engine.weights_bytes == wanted.num_weights * wanted.weight_size + SCALARS
    assert engine.activation_bytes == wanted.live_bytes + WORKSPACE


def test_products_of_integers_hold_integers(tmp_path: Path) -> None:
    """Weights of 1 byte and a scale of 2 bytes for each column; an array in float16 and its integers are live."""
    path = models.mlp(tmp_path / "model.onnx", (256, 1024, 1024, 1024, 256), 128, "float16")
    engine = _engine(path, tmp_path, int8=True)
    num_weights, num_columns = 2 * 256 * 1024 + 2 * 1024**2, 3 * 1024 + 256
    assert 0 <= engine.weights_bytes - num_weights - 2 * num_columns <= 1024
    assert engine.activation_bytes == 128 * 1024 * (2 + 1) + WORKSPACE
    assert {each.dtype for each in engine.constants if each.size_bytes > 1 << 16} == {"s8"}


def test_a_dimension_that_varies_counts_at_its_maximum(tmp_path: Path) -> None:
    path = models.mlp(tmp_path / "model.onnx", (256, 1024, 1024, 256), "batch")
    report = _report(str(path), "--set", "batch=256")
    assert report["config"] == {"batch": 256}
    assert report["engine_memory"]["is_dynamic"]
    assert report["engine_memory"]["input_bytes"] == 256 * 256 * 4
    assert report["engine_memory"]["replayed_bytes"] == 2 * 256 * 1024 * 4
    assert report["categories"]["forward_temps"] == 2 * 256 * 1024 * 4
    ended = _command("run", str(path), "--engine", "tensorrt")
    assert (ended.exit_code, type(ended.exception).__name__) != (0, "NoneType")
    assert "the dimensions batch of model are variable: give the maximum of each" in str(ended.exception)


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (("mlp", "--set", "batch_size=64", "-t", "dynamic-batch"), {"batch_size": 64}),
        (("transformer", "-t", "fp16+dynamic-batch+dynamic-length"), {"seq_len": 16}),
        (("decoder", "--phase", "decode", "-t", "dynamic-batch+dynamic-length"), {"context_len": 32}),
    ],
)
def test_sizes_of_a_workload_that_vary_count_at_their_maximum(
    arguments: tuple[str, ...], config: dict[str, int]
) -> None:
    """Inputs, outputs and the tensors between layers are those of the same sizes, fixed."""
    workload, *others, label = arguments
    fixed = "+".join(each for each in label.split("+") if not each.startswith("dynamic")) or "baseline"
    phase = () if workload == "decoder" else ("--phase", "inference")
    varies, whole = (_report(workload, *phase, "--preset", "tiny", *others, each) for each in (label, fixed))
    assert (varies["engine_memory"]["is_dynamic"], whole["engine_memory"]["is_dynamic"]) == (True, False)
    for field in ("input_bytes", "output_bytes", "replayed_bytes"):
        assert varies["engine_memory"][field] == whole["engine_memory"][field]
    assert varies["config"].items() >= config.items()
    assert varies["techniques"][-1].startswith("dynamic")


def test_the_mlp_is_that_by_hand() -> None:
    report = _report("mlp", "--phase", "inference", "--preset", "tiny", "--set", "batch_size=64")
    engine = report["engine_memory"]
    assert report["num_params"] == 12 * 32 + 32 + 2 * 32 + 32 * 4 + 4
    assert 0 <= engine["weights_bytes"] - 4 * report["num_params"] <= 1024
    assert (engine["input_bytes"], engine["output_bytes"]) == (64 * 12 * 4, 64 * 4 * 4)
    assert report["categories"]["batch"] == 64 * 12 * 4


@pytest.mark.parametrize(("techniques", "size"), [("baseline", 4), ("bf16-params", 2), ("bf16-params+int8-qdq", 2)])
def test_the_cache_of_a_decoder_is_an_input_and_an_output(techniques: str, size: int) -> None:
    """2 layers x keys and values x 4 sequences x 32 tokens x 2 heads x 8."""
    cache_bytes = 2 * 2 * 4 * 32 * 2 * 8 * size
    report = _report("decoder", "--phase", "decode", "--preset", "tiny", "-t", techniques)
    assert report["categories"]["kv_cache"] == cache_bytes
    assert report["categories"]["outputs"] == cache_bytes + 4 * 64 * 4  # and the logits
    assert report["categories"]["batch"] == 2 * 4 * 4  # tokens and positions
    largest = report["buffers"][:10]
    assert all(each["op"] for each in largest)
    assert {each["module"] for each in report["buffers"]} >= {"layers/attention", "layers/mlp"}


def test_a_prefill_and_a_transformer_add_up() -> None:
    assert _report("decoder", "--phase", "prefill", "--preset", "tiny")["categories"]["kv_cache"]
    assert _report("transformer", "--phase", "inference", "--preset", "tiny", "-t", "fp16")["categories"]["params"]


def test_a_capture_of_an_engine_shows_every_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = _command("run", "mlp", "--preset", "tiny", "--engine", "tensorrt", "--target", "l4", "-o", "e.memprof")
    assert ended.exit_code == 0, ended.output
    assert "builder says" in _command("show", "e.memprof", "-v").stdout
    for view in (
        ["--by", "buffer"],
        ["--by", "module"],
        ["--format", "html"],
        ["--format", "csv"],
        ["--format", "svg"],
    ):
        assert _command("show", "e.memprof", *view).exit_code == 0
    shown = json.loads(_command("show", "e.memprof", "--format", "json").stdout)
    _check_sums(shown)
    assert shown["target"]["name"] == "l4"


def test_engines_stand_beside_xla(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = _command("compare", "mlp", "--preset", "tiny", "--engine", "tensorrt", "--format", "json", "-t", "bf16")
    assert ended.exit_code == 0, ended.output
    rows = json.loads(ended.stdout)["rows"]
    assert [(row["label"], row["engine"]) for row in rows] == [("mlp bf16 (tensorrt)", "tensorrt")]


def test_each_figure_of_a_comparison_has_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = _command("compare", "decoder", "--preset", "tiny", "--phase", "decode", "--engine", "xla", "--engine",
                     "tensorrt", "--target", "rtx-4090")  # fmt: skip
    assert ended.exit_code == 0, ended.output
    shown = " ".join(ended.stdout.split())
    assert "Sizes and totals of baseline are the compiler's (XLA's buffer assignment)." in shown
    assert "Of baseline (tensorrt), params, temps and host are totals in the log of TensorRT's builder;" in shown
    assert "a replay of the layers divides temps into forward_temps and workspace." in shown


def test_the_largest_batch_of_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example takes 4 bytes of each of 256 inputs, 1024 + 1024 arrays between products, and 256 outputs."""
    monkeypatch.chdir(tmp_path)
    path = models.mlp(tmp_path / "model.onnx", (256, 1024, 1024, 256), "batch")
    ended = _command("fit", str(path), "--engine", "tensorrt", "--vary", "batch", "--set", "batch=64", "--memory",
                     "2GiB", "--format", "json", "--no-save")  # fmt: skip
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["field"] == "batch"
    budget = 2 * 1024**3 - 1536 * 1024**2
    assert 0.5 * budget / (4 * 2560) < found["value"] < budget / (4 * 2560)


def test_what_tensorrt_does_not_take_has_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"\xff\xff")
    for arguments, sentence in (
        (["decoder", "--preset", "tiny", "-t", "int8-weights"], "for TensorRT, quantise weights with -t int8-qdq"),
        (["mlp", "--target", "a100-40gb"], "does not support a100-40gb, whose compute capability is 8.0"),
        (["mlp", "--target", "v100-16gb"], "does not support v100-16gb, whose compute capability is 7.0"),
        (["mlp", "--target", "cpu"], "TensorRT builds for NVIDIA GPUs, but cpu is not one"),
        ([str(tmp_path / "no.onnx")], "is not an ONNX model, or is damaged"),
        ([str(tmp_path / "none.onnx")], "there is no file"),
        (["mlp", "-t", "donate"], "Technique 'donate' does not apply to mlp"),
        (["mlp", "--preset", "tiny", "-t", "dynamic-length"], "does not apply to mlp, which has no such dimension"),
        (["decoder", "--preset", "tiny", "-t", "paged-kv+dynamic-batch"], "batch_size cannot vary in this model"),
    ):
        ended = _command("run", *arguments, "--engine", "tensorrt")
        assert sentence in str(ended.exception)
