"""The bytes of a traced MLP as functions of its sizes: parameters, gradients, optimizer state, saved activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from memprof.analysis.pipeline import analyze  # noqa: E402
from memprof.analysis.records.capture import Capture  # noqa: E402
from memprof.analysis.records.categories import Category  # noqa: E402
from memprof.studies.torch_step import capture_of_step, torch_target  # noqa: E402
from memprof.workloads.torch.build import build  # noqa: E402
from memprof.workloads.torch.plan import plan  # noqa: E402
from tests.saved_tensors import check_every_moment, gradient_bytes, saved_for_backward  # noqa: E402

pytestmark = pytest.mark.with_one_jax
laws = settings(max_examples=5, deadline=None, derandomize=True)
LOSS = 4 + 4  # the total weight of the loss, and the gradient of the loss


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of an MLP, with a layer norm after its hidden layer."""

    batch: int
    inputs: int
    hidden: int
    classes: int

    @property
    def weights(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the weight matrices."""
        return (self.hidden, self.inputs), (self.classes, self.hidden)

    @property
    def vectors(self) -> int:
        """Elements of the biases, and of the layer norm's scale and bias."""
        return self.hidden + 2 * self.hidden + self.classes

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(rows * columns for rows, columns in self.weights) + self.vectors


SIZES = st.builds(
    Sizes,
    batch=st.integers(1, 9).map(lambda each: 2 * each),
    inputs=st.integers(1, 40),
    hidden=st.integers(2, 40).map(lambda each: 2 * each),
    classes=st.integers(2, 20),
)


def _traced(sizes: Sizes, techniques: str) -> Capture:
    overrides = f"batch_size={sizes.batch}", f"input_size={sizes.inputs}", f"hidden_size={sizes.hidden}"
    step = plan("mlp", preset="tiny", overrides=(*overrides, f"num_classes={sizes.classes}"), techniques=techniques)
    return capture_of_step(partial(build, step), torch_target("t4"))


def _float32(sizes: Sizes) -> int:
    """Layer norm saves its input and 8 bytes a row, SiLU its input, dropout a mask, the head its input, the loss."""
    return sizes.batch * (3 * 4 * sizes.hidden + 8 + sizes.hidden + 4 * sizes.classes) + LOSS


def _autocast(sizes: Sizes) -> int:
    """Layer norm and SiLU are in float32. The inputs of both products are copies in 16 bits."""
    per_example = 2 * sizes.inputs + 2 * 4 * sizes.hidden + 8 + sizes.hidden + 2 * sizes.hidden + 4 * sizes.classes
    return sizes.batch * per_example + LOSS


def _sixteen_bits(sizes: Sizes) -> int:
    """The batch is converted; statistics and the loss stay in float32."""
    return sizes.batch * (2 * sizes.inputs + 3 * 2 * sizes.hidden + 8 + sizes.hidden + 4 * sizes.classes) + LOSS


def _pruned(sizes: Sizes) -> int:
    """The product of the head's weight with its mask. No gradient goes to the batch, so the other is not saved."""
    return _float32(sizes) + 4 * sizes.classes * sizes.hidden


def _minibatches(sizes: Sizes) -> int:
    return (_float32(sizes) - LOSS) // 2 + LOSS


def _half_as_wide(sizes: Sizes) -> int:
    return _float32(Sizes(batch=sizes.batch, inputs=sizes.inputs, hidden=sizes.hidden // 2, classes=sizes.classes))


SAVED: dict[str, Callable[[Sizes], int]] = {
    "": _float32,
    "bf16": _autocast,
    "fp16": _autocast,
    "bf16-params": _sixteen_bits,
    "accum2": _minibatches,
    "remat-act": _float32,  # the checkpoint saves SiLU's input, which SiLU saves anyway
    "save-on-cpu": lambda _: 4,  # the gradient of the loss alone
    "prune=0.5": _pruned,
    "prune-structured=0.5": _half_as_wide,
}


@pytest.mark.parametrize("techniques", SAVED)
@given(sizes=SIZES)
@laws
def test_saved_activations_and_gradients(techniques: str, sizes: Sizes) -> None:
    capture = _traced(sizes, techniques)
    saved = saved_for_backward(capture)
    assert saved[Category.ACTIVATIONS] == SAVED[techniques](sizes)
    # Autocast keeps a copy of the head's weight; the hidden layer's is not needed, as the batch has no gradient.
    is_autocast = techniques in ("bf16", "fp16")
    assert saved[Category.PARAM_COPIES] == (2 * sizes.classes * sizes.hidden if is_autocast else 0)
    if "structured" not in techniques:
        assert gradient_bytes(capture) == (2 if techniques == "bf16-params" else 4) * sizes.parameters
    check_every_moment(capture, analyze(capture).live_peak_bytes)


def _adafactor(sizes: Sizes) -> int:
    """A row and a column for each matrix; vectors have all of their second moments."""
    return sum(rows + columns for rows, columns in sizes.weights) + sizes.vectors


STATE: dict[str, Callable[[Sizes], int]] = {
    "sgd": lambda _: 0,
    "adagrad": lambda sizes: sizes.parameters,
    "rmsprop": lambda sizes: sizes.parameters,
    "adam": lambda sizes: 2 * sizes.parameters,
    "adamw": lambda sizes: 2 * sizes.parameters,
    "adafactor": _adafactor,
}


@pytest.mark.parametrize("optimizer", STATE)
@given(sizes=SIZES)
@settings(laws, max_examples=3)
def test_parameters_and_optimizer_state(optimizer: str, sizes: Sizes) -> None:
    report = analyze(_traced(sizes, f"opt={optimizer}"))
    assert report.categories[Category.PARAMS] == 4 * sizes.parameters
    assert report.categories[Category.OPTIMIZER_STATE] == 4 * STATE[optimizer](sizes)
    assert report.categories[Category.BATCH] == sizes.batch * (4 * sizes.inputs + 8)
    assert sum(report.categories.values()) == report.footprint_bytes
