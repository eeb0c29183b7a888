"""Steps of PyTorch on several devices: the buffers of DistributedDataParallel and FSDP2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import memprof
from memprof.profiler_cli.app import app

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

# tiny: embeddings (64 + 24) x 32; two blocks of 12 h^2 + 13 h with h = 32; final norm 2 h; head 32 x 64 + 64.
TINY_PARAMETERS = (64 + 24) * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32 + 32 * 64 + 64
MIB = 1 << 20


def _report(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["run", *arguments, "--framework", "torch", "--format", "json", "-q", "--no-save"])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    assert sum(report["categories"].values()) == report["footprint_bytes"]
    assert report["categories"]["unattributed"] == 0
    return report


def layers() -> Any:
    """Layers whose gradients fill several buckets."""
    nn = torch.nn
    wide = [nn.Linear(512, 512, bias=False), nn.Linear(512, 512), nn.Linear(512, 4096), nn.Linear(4096, 512)]
    return nn.Sequential(*wide, nn.Linear(512, 4096, bias=False), nn.Linear(4096, 3000), nn.Linear(3000, 100))


def _spec() -> memprof.TorchStepSpec:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.zeros(2, 512)
    return memprof.TorchStepSpec(model=model, optimizer=optimizer, loss_fn=lambda m, b: m(b).sum(), batch=batch)


def _blocks() -> memprof.TorchStepSpec:
    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(30, 30) for _ in range(3))
            self.head = torch.nn.Linear(30, 5)

        def forward(self, value: Any) -> Any:
            for block in self.blocks:
                value = block(value)
            return self.head(value)

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.zeros(2, 30)
    return memprof.TorchStepSpec(model=model, optimizer=optimizer, loss_fn=lambda m, b: m(b).sum(), batch=batch)


def _sizes(profile: Any, op: str) -> list[int]:
    return [each.size_bytes for each in profile.capture.trace.values if each.op == op and each.size_bytes]


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("workload", ["mlp", "transformer"])
def test_dp_adds_one_bucket_byte_for_each_byte_of_gradient(workload: str) -> None:
    whole = _report(workload, "--preset", "tiny", "--set", "batch_size=4")
    part = _report(workload, "--preset", "tiny", "--set", "batch_size=32", "--mesh", "dp=8")
    buckets = 4 * part["num_params"]
    assert part["categories"]["collectives"] == buckets
    assert part["live_peak_bytes"] == whole["live_peak_bytes"] + buckets
    for category in ("params", "optimizer_state", "batch", "activations", "cotangents"):
        assert part["categories"][category] == whole["categories"][category]


@pytest.mark.usefixtures("one_process")
def test_the_buckets_are_those_of_the_real_reducer() -> None:
    model = torch.nn.parallel.DistributedDataParallel(layers())
    for _ in range(3):  # the third has statistics of the rebuilt buckets
        model(torch.zeros(2, 512)).sum().backward()
    told = model._get_ddp_logging_data()
    expected = [int(each) for each in told["rebuilt_bucket_sizes"].split(", ")]
    first = [int(each) for each in told["bucket_sizes"].split(", ")]
    assert len(expected) >= 3
    assert _sizes(memprof.profile_torch(_spec, mesh="dp=8"), "ddp.bucket") == [*first, *expected]


def test_a_parameter_without_a_gradient_is_refused_as_by_ddp() -> None:
    def spec() -> memprof.TorchStepSpec:
        made = _blocks()
        made.model.unused = torch.nn.Linear(2, 2)
        return made

    with pytest.raises(memprof.MemprofError, match=r"gives unused\.weight no gradient"):
        memprof.profile_torch(spec, mesh="dp=2")


def test_fsdp_divides_parameters_gradients_and_state_with_padding() -> None:
    # Over 8 devices 30 rows are 4 each, the last device's are padding; 5 rows are 1 each.
    block = 4 * 30 + 4
    head = 1 * 30 + 1
    profile = memprof.profile_torch(_blocks, mesh="fsdp=8")
    leaves = {leaf.path: leaf for leaf in profile.capture.arguments}
    assert leaves["blocks.0.weight"].shape == (4, 30)
    categories = {each.value: size for each, size in profile.report.categories.items()}
    assert categories["params"] == 4 * (3 * block + head)
    assert categories["optimizer_state"] == 2 * 4 * (3 * block + head)
    gathers = _sizes(profile, "fsdp.all_gather")
    # A step gathers each block before its forward and its backward pass, the head and the rest once. Two steps.
    assert sorted(gathers) == sorted(2 * (6 * [8 * 4 * block] + [8 * 4 * head]))
    scattered = [size for size in _sizes(profile, "fsdp.reduce_scatter") if size in (8 * 4 * block, 8 * 4 * head)]
    assert len(scattered) == 2 * 4
    shards = [size for size in _sizes(profile, "fsdp.reduce_scatter") if size in (4 * block, 4 * head)]
    assert len(shards) == 2 * 4


@pytest.mark.parametrize("techniques", ["baseline", "bf16+remat", "fp16+accum2+zero-grads+no-foreach"])
def test_fsdp_of_the_transformer_by_arithmetic(techniques: str) -> None:
    report = _report("transformer", "--preset", "tiny", "--set", "batch_size=32", "--mesh", "fsdp=8", "-t", techniques)
    assert report["categories"]["params"] == 4 * TINY_PARAMETERS // 8
    assert report["categories"]["optimizer_state"] == 2 * 4 * TINY_PARAMETERS // 8
    assert any("NCCL" in doubt for doubt in report["doubts"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mlp", "--mesh", "8"], "a PyTorch step is divided over one axis"),
        (["mlp", "--mesh", "dp=2,fsdp=2"], "a PyTorch step is divided over one axis"),
        (["mlp", "--preset", "tiny", "--mesh", "dp=3"], "batch_size is 16, which is not divisible by 3 devices"),
    ],
)
def test_a_mesh_that_pytorch_is_not_divided_over_gets_a_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["run", *arguments, "--framework", "torch"])
    assert isinstance(result.exception, memprof.MemprofError)
    assert sentence in str(result.exception)


def test_a_script_is_traced_on_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import torch\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "train.py", "--framework", "torch", "--mesh", "dp=2"])
    assert "is a script" in str(result.exception)


@pytest.mark.parametrize("mesh", ["dp=8", "fsdp=8"])
def test_a_comparison_has_rows_of_one_device_of_a_mesh(mesh: str) -> None:
    step = "compare", "transformer", "--preset", "tiny", "--set", "batch_size=32", "--framework", "torch"
    rows = "-t", "baseline", "-t", "bf16"
    shown = CliRunner().invoke(app, [*step, *rows, "--mesh", mesh, "--no-save", "--format", "json", "-q"])
    assert shown.exit_code == 0, shown.output
    compared = json.loads(shown.stdout)["rows"]
    for row, techniques in zip(compared, ("baseline", "bf16"), strict=True):
        alone = _report("transformer", "--preset", "tiny", "--set", "batch_size=32", "--mesh", mesh, "-t", techniques)
        assert row["categories"] == alone["categories"]


def test_a_fit_on_a_mesh_finds_what_a_run_confirms() -> None:
    fit = "fit", "mlp", "--framework", "torch", "--mesh", "fsdp=8", "--target", "t4", "--memory", "3GiB"
    shown = CliRunner().invoke(app, [*fit, "--no-save", "--format", "json", "-q"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["step"] == found["next_value"] - found["value"] == 8
    for value, fits in ((found["value"], True), (found["next_value"], False)):
        alone = _report("mlp", "--target", "t4", "--mesh", "fsdp=8", "--set", f"batch_size={value}")
        assert (alone["footprint_bytes"] <= found["budget_bytes"]) is fits
    assert found["command"].startswith("memprof run mlp --framework torch --target t4 --mesh fsdp=8")


def test_the_fewest_devices_that_a_step_fits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")  # the arrays alone, of which four devices hold a quarter each
    sizes = "--set", "batch_size=16384", "--set", "hidden_size=8192"
    fit = "fit", "mlp", "--framework", "torch", "--vary", "devices", "--memory", "1GiB", *sizes
    shown = CliRunner().invoke(app, [*fit, "--no-save", "-q"])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("devices=4 fits, 2 does not")
    assert "the footprint is a lower bound" in " ".join(shown.stdout.split())


@pytest.mark.parametrize("optimizer", ["adafactor", "adam8bit", "galore"])
def test_an_optimizer_without_sharded_updates_is_refused_before_the_step(optimizer: str) -> None:
    command = "run", "mlp", "--preset", "tiny", "--framework", "torch", "--mesh", "fsdp=8", "-t", f"opt={optimizer}"
    error = CliRunner().invoke(app, [*command, "--no-save", "-q"]).exception
    assert type(error) is memprof.MemprofError  # exit code 2
    assert "does not update parameters that FSDP2 divides" in str(error)
