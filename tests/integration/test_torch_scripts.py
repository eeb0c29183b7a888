"""Training scripts of PyTorch as their users write them, run on shapes alone until their second step is done.

What each holds is counted by hand: a linear layer from `a` to `b` features has `a * b + b` parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import memprof
from memprof.profiler_cli.app import app

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

pytestmark = pytest.mark.with_one_jax
Watch = Callable[..., dict[str, Any]]
IMPORTS = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"

# A class with batch norm and dropout, a data loader with workers, mixed precision, a scheduler, options, bookkeeping.
OPTIONS = """
import argparse, math
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
torch.backends.cudnn.benchmark = True
data, _ = random_split(TensorDataset(torch.randn(400, 3, 8, 8), torch.randint(0, 10, (400,))), [320, 80])
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=4, pin_memory=True)
conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
model = nn.Sequential(conv, nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
total = seen = 0
for x, y in loader:
    x, y = x.cuda(non_blocking=True), y.to("cuda", non_blocking=True)
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=args.amp):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    total, seen = total + loss.item() * len(x), seen + y.numel()
    if math.isnan(total / seen):
        raise SystemExit("diverged")
    print(f"{loss:.3f}", torch.cuda.max_memory_allocated(), loss.detach().cpu().numpy())
"""
PARAMETERS = (3 * 8 * 9 + 8) + 2 * 8 + (512 * 10 + 10)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.chdir(tmp_path)

    def run(source: str, *options: str, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        Path("train.py").write_text(IMPORTS + source, encoding="utf-8")
        command = ["watch", "--format", "json", "--keep", "0", *options, "train.py", *arguments]
        result = CliRunner().invoke(app, command)
        if result.exception is not None:
            raise result.exception
        report: dict[str, Any] = json.loads(result.stdout)
        assert report["framework"] == "torch"
        assert sum(report["categories"].values()) == report["footprint_bytes"]
        assert report["categories"]["unattributed"] == 0
        return report

    return run


def test_a_script_with_a_loader_options_and_mixed_precision(watch: Watch) -> None:
    plain = watch(OPTIONS, arguments=("--batch-size", "16"))
    mixed = watch(OPTIONS, arguments=("--batch-size", "16", "--amp"))
    for report in (plain, mixed):
        assert report["num_params"] == PARAMETERS
        assert report["categories"]["params"] == report["categories"]["optimizer_state"] == 4 * PARAMETERS
        assert report["config"]["batch_size"] == 16
        assert report["categories"]["batch"] == 4 * 16 * 3 * 8 * 8 + 8 * 16  # of the 400 images only these are there
    moments = 2 * 4 * 8 + 8  # of the batch norm: two moments of eight channels, and a counter
    assert plain["categories"]["other_state"] == moments
    assert mixed["categories"]["other_state"] == moments + 4 + 4  # the scale, and how long it has held


def test_run_sets_an_option_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(IMPORTS + OPTIONS, encoding="utf-8")
    result = CliRunner().invoke(
        app, ["run", "train.py", "--set", "batch_size=8", "--format", "json", "--no-save", "--target", "t4"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["framework"], report["target"]["name"], report["config"]["batch_size"]) == ("torch", "t4", 8)


def test_two_networks_are_told_apart_by_their_variables(watch: Watch) -> None:
    report = watch("""
dev = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
maker, judge = nn.Linear(16, 64).to(dev), nn.Linear(64, 1).to(dev)
of_maker, of_judge = (torch.optim.Adam(each.parameters()) for each in (maker, judge))
for _ in range(100):
    real, ones = torch.rand(32, 64).to(dev), torch.ones(32, 1, device=dev)
    fake = maker(torch.randn(32, 16, device=dev))
    loss = F.mse_loss(judge(real), ones) + judge(fake.detach()).mean()
    of_judge.zero_grad(); loss.backward(); of_judge.step()
    loss = F.mse_loss(judge(fake), ones)
    of_maker.zero_grad(); loss.backward(); of_maker.step()
""")
    of_maker, of_judge = 16 * 64 + 64, 64 + 1
    assert report["num_params"] == of_maker + of_judge
    assert report["categories"]["optimizer_state"] == 2 * 4 * (of_maker + of_judge)
    assert {each["path"] for each in report["modules"]} >= {"maker", "judge"}


def test_accumulation_tied_weights_compilation_and_evaluation_before_the_first_step(watch: Watch) -> None:
    report = watch("""
import contextlib
batch_size = 4
block, device = 16, "cuda"
text = torch.tensor([i % 65 for i in range(1000)])
def batch():
    at = torch.randint(len(text) - block, (batch_size,))
    x, y = (torch.stack([text[i + shift : i + shift + block] for i in at]) for shift in (0, 1))
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(65, 32), nn.Linear(32, 65, bias=False)
        self.head.weight = self.embed.weight
        self.places = nn.Embedding(block, 32)
    def forward(self, x, y):
        hidden = self.embed(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())
model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model = torch.compile(model)
for step in range(10):
    if step % 5 == 0:
        with torch.no_grad():
            print(f"{model(*batch()):.2f}")
    for _ in range(4):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(*batch()) / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
""")
    params = 65 * 32 + 16 * 32
    assert report["num_params"] == params
    assert report["categories"]["optimizer_state"] == 2 * 4 * params + 2 * 4  # a fused update counts on the device
    assert report["config"]["batch_size"] == 4
    assert report["doubts"] == ["the eager step was traced: torch.compile may keep other values for the backward pass"]


def test_frozen_parameters_have_neither_gradients_nor_state(watch: Watch) -> None:
    report = watch("""
from torch.utils.checkpoint import checkpoint
torch.set_default_device("cuda")
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(128, 128).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(4, 128)), nn.Parameter(torch.zeros(128, 4))
    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T
net = nn.ModuleList(Adapted() for _ in range(3))
optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad])
for _ in range(10):
    x = torch.randn(8, 128, requires_grad=True)
    for layer in net:
        x = checkpoint(layer, x, use_reentrant=False)
    loss = x.square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    if torch.isnan(loss):
        raise ValueError("nan")
""")
    adapters = 3 * 2 * 4 * 128
    assert report["num_params"] == 3 * (128 * 128 + 128) + adapters
    assert report["categories"]["optimizer_state"] == 2 * 4 * adapters


AVERAGED = """
import copy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).cuda()
average = AveragedModel(model{average})
teacher = copy.deepcopy(model).requires_grad_(False)
frozen = nn.Linear(4, 4).cuda().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    x = torch.randn(8, 16).cuda()
    with torch.no_grad():
        y = frozen(teacher(x))
    (model(x) - y).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
    average.update_parameters(model)
    with torch.no_grad():
        for mine, other in zip(teacher.parameters(), model.parameters()):
            {update}
"""


@pytest.mark.parametrize(
    ("average", "update", "others"),
    [
        ("", "mine.mul_(0.99).add_(other, alpha=0.01)", 0),
        (", multi_avg_fn=get_ema_multi_avg_fn(0.999)", "mine.lerp_(other, 0.01)", 0),
        # The peak is in these updates, when the first step's target is still there.
        (
            ", avg_fn=lambda mine, other, _: 0.9 * mine + 0.1 * other",
            "mine.copy_(0.99 * mine + 0.01 * other)",
            4 * 8 * 4,
        ),
    ],
)
def test_averages_of_parameters_are_no_parameters(average: str, update: str, others: int, watch: Watch) -> None:
    report = watch(AVERAGED.format(average=average, update=update))
    params, frozen = (16 * 32 + 32) + 2 * 32 + (32 * 4 + 4), 4 * 4 + 4
    assert report["num_params"] == params + frozen
    assert report["categories"]["params"] == 4 * (params + frozen)
    statistics = 2 * 4 * 32 + 8  # of a batch norm, with its counter; AveragedModel's is on the host
    assert report["categories"]["other_state"] == 2 * 4 * params + 3 * statistics + others


def test_a_closure_is_a_part_of_the_update(watch: Watch) -> None:
    report = watch("""
x = torch.linspace(0, 1, 200).unsqueeze(1).cuda()
y = torch.sin(x * 6)
net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)).cuda()
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss
for _ in range(10):
    print(optimizer.step(closure).item())
""")
    assert report["num_params"] == 50 + 50 + 50 + 1
    assert report["categories"]["activations"] >= 4 * 200 * 50


def test_values_that_are_saved_on_the_host_are_not_on_the_gpu(watch: Watch) -> None:
    def kept(saved: str) -> int:
        report = watch(f"""
import contextlib
net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)]).to("cuda", torch.bfloat16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
for _ in range(3):
    with {saved}:
        loss = net(torch.randn(512, 64, device="cuda", dtype=torch.bfloat16)).float().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
""")
        assert report["categories"]["params"] == 2 * 8 * (64 * 64 + 64)
        return int(report["categories"]["activations"])

    # Each layer keeps the input of gelu, and all but the first gelu's result for the next product.
    assert kept("contextlib.nullcontext()") >= 14 * 2 * 512 * 64
    assert kept("torch.autograd.graph.save_on_cpu(pin_memory=True)") <= 2 * 2 * 512 * 64


def test_a_script_that_names_no_gpu_is_taken_to_be_on_one(watch: Watch) -> None:
    report = watch("""
import numpy as np
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    x, y = np.zeros((500, 16), "float32"), np.zeros(500, "int64")
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.y[i])
model = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(model.parameters())
for x, y in DataLoader(Data(), batch_size=50, shuffle=True):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""")
    params = (16 * 128 + 128) + (128 * 3 + 3)
    assert report["categories"]["params"] == 4 * params
    assert report["categories"]["optimizer_state"] == 8 * params
    assert report["categories"]["batch"] == 4 * 50 * 16 + 8 * 50
    assert report["doubts"] == ["the script names no GPU: all of its tensors are assumed to be on one"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("loss = y[y > 0].sum()", r"makes shapes depend on the values of tensors \(aten.nonzero, .*train.py:9\)"),
        ("break", "ended without calling an optimizer's step"),
        ("raise SystemExit(3)", "has ended itself with 3 before its second training step was done"),
        ("loss = F.linear(y, torch.ones(3, 3).cuda())", "failed while it was traced: RuntimeError"),
    ],
)
def test_what_cannot_be_traced_is_said_in_a_sentence(line: str, sentence: str, watch: Watch) -> None:
    with pytest.raises(memprof.MemprofError, match=sentence):
        watch(f"""
m = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
for _ in range(4):
    y = m(torch.randn(8, 4, device="cuda"))
    {line}
    loss.backward(); optimizer.step()
""")


def test_nothing_of_the_script_sees_that_it_is_left(watch: Watch, tmp_path: Path) -> None:
    watch("""
import atexit
from pathlib import Path
atexit.register(lambda: Path("seen").touch())
m = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
try:
    for step in range(4):
        m(torch.randn(8, 4, device="cuda")).sum().backward()
        optimizer.step()
        Path(f"step{step}").touch()
finally:
    Path("seen").touch()
""")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step0", "train.py"]


@pytest.mark.parametrize("option", [("--stop-after", "3"), ("--pool", "0.5")])
def test_options_for_programs_of_jax_are_refused(option: tuple[str, str], watch: Watch) -> None:
    with pytest.raises(memprof.MemprofError, match=f"{option[0]} applies to JAX scripts"):
        watch("pass", *option)


def test_sparse_gradients_are_refused_in_one_sentence(watch: Watch) -> None:
    with pytest.raises(
        memprof.MemprofError, match="makes a tensor of layout sparse_coo, and a trace only follows dense"
    ):
        watch("""
embedding = nn.Embedding(1000, 16, sparse=True).cuda()
optimizer = torch.optim.SparseAdam(embedding.parameters())
for _ in range(3):
    embedding(torch.randint(0, 1000, (32,), device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
