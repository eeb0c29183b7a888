"""A traced step of PyTorch against arithmetic: every category, to the byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from memprof.analysis.pipeline import analyze  # noqa: E402
from memprof.analysis.records.capture import Target  # noqa: E402
from memprof.analysis.records.categories import Category, Phase  # noqa: E402
from memprof.analysis.records.report import Report  # noqa: E402
from memprof.errors import MemprofError  # noqa: E402
from memprof.sources.torch.step_spec import TorchStepSpec  # noqa: E402
from memprof.sources.torch.trace_step import trace_step  # noqa: E402
from tests.saved_tensors import saved_for_backward  # noqa: E402

TARGET = Target(
    name="t4", description="", platform="cuda", memory_bytes=16 << 30, compute_capability="7.5", reason="asked for"
)
BATCH, INPUTS, HIDDEN, CLASSES = 64, 32, 128, 16
# Weight and bias of two layers, in float32.
PARAMETER_BYTES = 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)


def _network(dropout: float = 0.0) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.GELU(), nn.Dropout(dropout), nn.Linear(HIDDEN, CLASSES))


def _loss(model: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def _spec(optimizer: Callable[[Any], Any], *, dropout: float = 0.0, **others: Any) -> TorchStepSpec:
    model = _network(dropout)
    batch = torch.randn(BATCH, INPUTS), torch.zeros(BATCH, dtype=torch.int64)
    return TorchStepSpec(model=model, optimizer=optimizer(model.parameters()), loss_fn=_loss, batch=batch, **others)


def _report(make_spec: Callable[[], TorchStepSpec]) -> Report:
    return analyze(trace_step(make_spec, target=TARGET))


def _sgd(params: Any) -> Any:
    return torch.optim.SGD(params, lr=0.1, foreach=False)


def _kept(report: Report) -> dict[str, int]:
    """The bytes of what a step keeps for its backward pass, by shape."""
    made = [each for each in report.temp_buffers if each.category is Category.ACTIVATIONS]
    return {f"{each.dtype}{list(each.shape)}": each.size_bytes for each in made}


def test_parameters_gradients_optimizer_state_and_batch_by_arithmetic() -> None:
    report = _report(lambda: _spec(lambda params: torch.optim.AdamW(params, foreach=False)))
    assert report.categories[Category.PARAMS] == PARAMETER_BYTES
    assert report.categories[Category.OPTIMIZER_STATE] == 2 * PARAMETER_BYTES
    assert sum(each.size_bytes for each in report.temp_buffers if each.name.endswith(".grad")) == PARAMETER_BYTES
    assert report.categories[Category.BATCH] == 4 * BATCH * INPUTS + 8 * BATCH
    assert report.num_params == PARAMETER_BYTES // 4
    assert report.program.host_bytes == 4 * 4  # AdamW counts steps on the host, for each of four parameters


def test_what_is_kept_for_the_backward_pass_by_arithmetic() -> None:
    # gelu keeps its input, the second product gelu's result, softmax its own result; the loss a weight, a scalar.
    assert _kept(_report(lambda: _spec(_sgd))) == {
        f"f32[{BATCH}, {HIDDEN}]": 4 * BATCH * HIDDEN,
        f"f32[{BATCH}, {CLASSES}]": 4 * BATCH * CLASSES,
        "f32[]": 4,
    }
    report = _report(lambda: _spec(_sgd))
    hidden = [each for each in report.temp_buffers if each.shape == (BATCH, HIDDEN) and each.phase is Phase.FORWARD]
    assert [each.category for each in hidden] == [Category.ACTIVATIONS] * 2


def test_statistics_of_norms_are_in_float32_as_on_cuda() -> None:
    nn = torch.nn

    def make() -> TorchStepSpec:
        model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.LayerNorm(HIDDEN), nn.BatchNorm1d(HIDDEN)).bfloat16()
        batch = torch.randn(BATCH, INPUTS, dtype=torch.bfloat16)
        optimizer = _sgd(model.parameters())
        return TorchStepSpec(model=model, optimizer=optimizer, loss_fn=lambda m, b: m(b).sum(), batch=batch)

    kept = [each for each in _report(make).temp_buffers if each.category is Category.ACTIVATIONS]
    statistics = [(each.dtype, each.shape) for each in kept if each.op.endswith("norm") and each.shape[-1] != HIDDEN]
    assert statistics == [("f32", (BATCH, 1))] * 2
    assert [each.shape for each in kept if each.dtype == "f32" and each.op == "aten.native_batch_norm"] == [
        (HIDDEN,)
    ] * 2


def test_dropout_keeps_one_byte_an_element_as_on_cuda() -> None:
    assert _kept(_report(lambda: _spec(_sgd, dropout=0.5)))[f"pred[{BATCH}, {HIDDEN}]"] == BATCH * HIDDEN


@pytest.mark.parametrize("make", [_sgd, lambda params: torch.optim.AdamW(params)], ids=["sgd", "adamw"])
def test_all_sums_are_the_peak_to_the_byte(make: Callable[[Any], Any]) -> None:
    report = _report(lambda: _spec(make))
    timeline = report.timeline
    assert sum(report.categories.values()) == report.footprint_bytes == report.modules.size_bytes
    assert sum(each.size_bytes for each in report.buffers) == report.live_peak_bytes
    assert max(each.live_bytes for each in timeline.slices(timeline.num_positions)) == report.live_peak_bytes
    assert report.live_peak_bytes <= report.footprint_bytes
    assert report.categories[Category.UNATTRIBUTED] == 0
    ends = sum(change.delta_bytes for change in timeline.changes)
    assert ends == 0


def test_adamw_works_on_all_parameters_at_once_unless_it_is_told_otherwise() -> None:
    together = _report(lambda: _spec(lambda params: torch.optim.AdamW(params)))
    one_by_one = _report(lambda: _spec(lambda params: torch.optim.AdamW(params, foreach=False)))

    def most(report: Report) -> int:
        temps = [each for each in report.temp_buffers if each.category is Category.UPDATE_TEMPS]
        return max(sum(e.size_bytes for e in temps if e.start <= p <= e.end) for p in range(temps[-1].end + 1))

    assert most(together) >= PARAMETER_BYTES
    assert most(one_by_one) < PARAMETER_BYTES * 2


def test_gradients_set_to_zero_stay_and_those_set_to_none_do_not() -> None:
    kept, freed = (_report(lambda flag=flag: _spec(_sgd, zero_grads=flag)) for flag in (True, False))

    def in_forward(report: Report) -> int:
        """Bytes of gradients that are live at the first operation."""
        return sum(
            each.size_bytes
            for each in (*report.buffers, *report.temp_buffers)
            if each.category is Category.GRADIENTS and each.start == 0 and each.shape != ()
        )

    assert in_forward(freed) == 0
    assert in_forward(kept) >= PARAMETER_BYTES


def test_minibatches_add_up_their_gradients_in_place() -> None:
    def make() -> TorchStepSpec:
        model = _network()
        parts = [(torch.randn(BATCH // 4, INPUTS), torch.zeros(BATCH // 4, dtype=torch.int64)) for _ in range(4)]
        optimizer = _sgd(model.parameters())
        return TorchStepSpec(model=model, optimizer=optimizer, loss_fn=_loss, batch=parts, num_minibatches=4)

    report = _report(make)
    assert _kept(report)[f"f32[{BATCH // 4}, {HIDDEN}]"] == BATCH * HIDDEN
    assert report.flops == _report(lambda: _spec(_sgd)).flops


def test_a_checkpoint_keeps_its_input_and_computes_the_rest_again() -> None:
    def loss(model: Any, batch: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        hidden = checkpoint(model[:3], batch[0], use_reentrant=False)
        return torch.nn.functional.cross_entropy(model[3](hidden), batch[1])

    def make() -> TorchStepSpec:
        model = _network()
        batch = torch.randn(BATCH, INPUTS), torch.zeros(BATCH, dtype=torch.int64)
        return TorchStepSpec(model=model, optimizer=_sgd(model.parameters()), loss_fn=loss, batch=batch)

    report = _report(make)
    recomputed = [each for each in report.temp_buffers if each.category is Category.RECOMPUTED]
    assert sum(each.size_bytes for each in recomputed) >= 4 * BATCH * HIDDEN
    assert report.recomputed_flops == 2 * BATCH * INPUTS * HIDDEN
    assert report.program.num_recomputed_operations > 0


def test_autocast_uses_cudas_lists() -> None:
    def loss(model: Any, batch: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.float16):
            return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def make() -> TorchStepSpec:
        model = _network()
        batch = torch.randn(BATCH, INPUTS), torch.zeros(BATCH, dtype=torch.int64)
        scaler = torch.amp.GradScaler("cuda")
        return TorchStepSpec(model=model, optimizer=_sgd(model.parameters()), loss_fn=loss, batch=batch, scaler=scaler)

    report = _report(make)
    copies = [each for each in report.temp_buffers if each.category is Category.PARAM_COPIES]
    assert sum(each.size_bytes for each in copies) == PARAMETER_BYTES // 2
    kept = _kept(report)
    assert kept[f"f16[{BATCH}, {HIDDEN}]"] == 2 * BATCH * HIDDEN
    assert kept[f"f32[{BATCH}, {CLASSES}]"] == 4 * BATCH * CLASSES  # softmax in float32
    assert report.categories[Category.OTHER_STATE] == 4 + 4  # the scale, and how long it has held


def test_an_lstm_keeps_its_gates_and_states_of_every_step() -> None:
    """A step saves four gates and tanh(c). All but the last also save h and c, which the next step multiplies."""
    length, size = 7, 24

    def make() -> TorchStepSpec:
        model = torch.nn.LSTM(INPUTS, size)
        batch = torch.randn(length, BATCH, INPUTS)
        return TorchStepSpec(
            model=model, optimizer=_sgd(model.parameters()), loss_fn=lambda m, b: m(b)[0].sum(), batch=batch
        )

    saved = saved_for_backward(trace_step(make, target=TARGET))[Category.ACTIVATIONS]
    assert saved == 4 * BATCH * size * (5 * length + 2 * (length - 1)) + 4  # and the gradient of the loss


def test_softmax_of_pytorch_1_10_keeps_its_input_beside_its_result() -> None:
    def kept(*, softmax_input: bool) -> list[tuple[str, str]]:
        report = _report(lambda: _spec(_sgd, softmax_input=softmax_input))
        made = [each for each in report.temp_buffers if each.category is Category.ACTIVATIONS]
        return sorted((each.op, str(list(each.shape))) for each in made)

    logits = ("aten.addmm", str([BATCH, CLASSES]))  # the input of the loss's log_softmax
    assert kept(softmax_input=True) == sorted([*kept(softmax_input=False), logits])


def test_the_kept_input_of_softmax_has_the_place_of_the_forward_pass() -> None:
    def place(*, softmax_input: bool) -> tuple[str, str, Category]:
        report = _report(lambda: _spec(_sgd, softmax_input=softmax_input))
        cotangent = next(each for each in report.temp_buffers if each.op == "aten._log_softmax_backward_data")
        return cotangent.module, cotangent.source, cotangent.category

    assert place(softmax_input=True) == place(softmax_input=False)


def test_modules_and_source_lines_of_forward_and_backward_values() -> None:
    report = _report(lambda: _spec(_sgd))
    gradients = {each.name: each.module for each in report.temp_buffers if each.name.endswith(".grad")}
    assert gradients == {"0.weight.grad": "0", "0.bias.grad": "0", "3.weight.grad": "3", "3.bias.grad": "3"}
    gelu = next(each for each in report.temp_buffers if each.op == "aten.gelu")
    assert gelu.module == "1"
    assert gelu.source.rpartition(":")[0] == __file__
    cotangent = next(each for each in report.temp_buffers if each.op == "aten.gelu_backward")
    assert (cotangent.module, cotangent.category) == ("1", Category.COTANGENTS)
    assert cotangent.source == gelu.source
    assert [child.path for child in report.modules.children][:2] == ["0", "3"]


def test_a_model_that_is_moved_to_cuda_is_traced_as_if_it_were_there() -> None:
    def make() -> TorchStepSpec:
        model = _network().to("cuda")
        batch = torch.randn(BATCH, INPUTS, device="cuda"), torch.tensor([0] * BATCH).cuda()
        return TorchStepSpec(model=model, optimizer=_sgd(model.parameters()), loss_fn=_loss, batch=batch)

    assert _report(make).categories == _report(lambda: _spec(_sgd)).categories


def test_a_model_that_is_cast_has_parameters_of_that_type() -> None:
    def make() -> TorchStepSpec:
        model = _network().bfloat16()
        batch = torch.randn(BATCH, INPUTS, dtype=torch.bfloat16), torch.zeros(BATCH, dtype=torch.int64)
        return TorchStepSpec(model=model, optimizer=_sgd(model.parameters()), loss_fn=_loss, batch=batch)

    assert _report(make).categories[Category.PARAMS] == PARAMETER_BYTES // 2


def test_shapes_that_depend_on_values_are_refused_with_a_sentence() -> None:
    def make() -> TorchStepSpec:
        model = _network()
        batch = torch.randn(BATCH, INPUTS), torch.zeros(BATCH, dtype=torch.int64)

        def loss(model: Any, batch: Any) -> Any:
            return model(batch[0])[batch[1] > 0].sum()

        return TorchStepSpec(model=model, optimizer=_sgd(model.parameters()), loss_fn=loss, batch=batch)

    with pytest.raises(MemprofError, match="the shapes of this step depend on the values of its tensors"):
        _report(make)


def test_a_trace_leaves_no_hooks_behind() -> None:
    _report(lambda: _spec(_sgd))
    assert torch.nn.modules.module._global_forward_hooks == {}
    assert torch.nn.modules.module._global_forward_pre_hooks == {}
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::layer_norm", "AutocastCPU")
    softmax = torch.nn.functional.softmax(torch.ones(2, requires_grad=True), dim=0)
    _report(lambda: _spec(_sgd, softmax_input=True))
    assert type(torch.nn.functional.softmax(torch.ones(2, requires_grad=True), dim=0).grad_fn) is type(softmax.grad_fn)


def test_importing_memprof_and_its_records_imports_neither_framework() -> None:
    code = (
        "import sys, memprof, memprof.sources.torch.step_spec; sys.exit('torch' in sys.modules or 'jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
