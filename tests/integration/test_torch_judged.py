"""Three training scripts as their users write them, judged by hand before memprof was asked.

Each number is derived from the script in `tests/torch_scripts`: parameters, gradients, optimizer state, and what
autograd saves until the last backward pass of a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from memprof.analysis.pipeline import analyze  # noqa: E402
from memprof.analysis.records.capture import Capture  # noqa: E402
from memprof.analysis.records.categories import Category  # noqa: E402
from memprof.studies.torch_step import capture_of_script, torch_target  # noqa: E402
from tests.saved_tensors import check_every_moment, gradient_bytes, saved_for_backward  # noqa: E402

pytestmark = pytest.mark.with_one_jax
SCRIPTS = Path(__file__).parents[1] / "torch_scripts"
LOSS_GRADIENT = 4


def _capture(script: str) -> Capture:
    capture = capture_of_script(str(SCRIPTS / script), (), torch_target("t4"), is_module=False)
    check_every_moment(capture, analyze(capture).live_peak_bytes)
    return capture


def test_a_resnet_with_sgd_and_momentum() -> None:
    capture, images, width = _capture("resnet.py"), 8, 64
    report = analyze(capture)
    params = 11_689_512  # of ResNet-18
    channels = 64 + 4 * 64 + 5 * 128 + 5 * 256 + 5 * 512  # of 20 batch norms
    assert report.num_params == params
    assert gradient_bytes(capture) == report.categories[Category.OPTIMIZER_STATE] == 4 * params
    assert report.categories[Category.OTHER_STATE] == 2 * 4 * channels + 8 * 20
    assert report.categories[Category.BATCH] == images * (4 * 3 * width**2 + 8)
    at = {num: images * num * (width // shrink) ** 2 for num, shrink in ((64, 4), (128, 8), (256, 16), (512, 32))}
    stem = images * 64 * (width // 2) ** 2
    elements = (
        2 * stem  # results of the convolution and, in place, of batch norm and ReLU
        + at[64]  # the pool's result
        + 2 * at[64]  # and its indices, of 8 bytes
        # A block saves results of two convolutions and of two ReLUs; one that shrinks also that of its shortcut's.
        + 8 * at[64]
        + 9 * (at[128] + at[256] + at[512])
        + 2 * channels  # mean and deviation
        + images * 512  # the input of the last layer
        + images * 1000  # log_softmax
        + 1  # the loss's total weight
    )
    assert saved_for_backward(capture)[Category.ACTIVATIONS] == 4 * elements + LOSS_GRADIENT


def test_an_lstm_language_model_with_adamw_and_clipped_gradients() -> None:
    capture, batch, length, words, inner, hidden = _capture("lstm.py"), 8, 6, 500, 32, 64
    report = analyze(capture)
    layers = [4 * hidden * (size + hidden) + 8 * hidden for size in (inner, hidden)]
    params = words * inner + sum(layers) + hidden * words + words
    assert report.num_params == params
    assert gradient_bytes(capture) == 4 * params
    assert report.categories[Category.OPTIMIZER_STATE] == 8 * params
    assert report.program.host_bytes == 4 * (1 + 4 + 4 + 2)  # a step counter for each parameter
    assert report.categories[Category.BATCH] == 8 * 20_000  # the whole text is on the GPU
    assert any("the reserve space of cuDNN's kernels is unknown" in doubt for doubt in report.doubts)
    tokens, state = batch * length, batch * hidden
    dropped = tokens * (inner + hidden + hidden)  # of the embedding, between the layers, of the result
    elements = (
        dropped
        + 2 * state * (5 * length + 2 * (length - 1))  # gates and tanh(c); h and c of all steps but the last
        + 2 * 2 * state  # the state that the script carries, of h and c
        + tokens * words  # log_softmax
        + 1
    )
    assert saved_for_backward(capture)[Category.ACTIVATIONS] == 4 * elements + dropped + LOSS_GRADIENT


def test_a_gan_with_two_optimizers() -> None:
    capture, images = _capture("dcgan.py"), 64
    report = analyze(capture)
    maker = 16 * (100 * 128 + 128 * 64 + 64 * 3) + 2 * (128 + 64)
    judge = 16 * (3 * 64 + 64 * 128 + 128 * 1) + 2 * 128
    assert report.num_params == maker + judge
    assert gradient_bytes(capture) == 4 * (maker + judge)  # the generator's loss has gradients of both
    assert report.categories[Category.OPTIMIZER_STATE] == 8 * (maker + judge)
    channels = 128 + 64 + 128
    assert report.categories[Category.OTHER_STATE] == 4 * 64 * 100 + 2 * 4 * channels + 3 * 8  # the fixed noise first
    elements = (
        images * 100  # noise
        + 2 * images * 128 * 4**2  # results of a convolution and, in place, of batch norm and ReLU
        + 2 * images * 64 * 8**2
        + images * 3 * 16**2  # tanh, which the judge's first convolution reads
        + images * 64 * 8**2  # LeakyReLU in place
        + 2 * images * 128 * 4**2
        + images  # sigmoid
        + 2 * channels  # mean and deviation
    )
    assert saved_for_backward(capture)[Category.ACTIVATIONS] == 4 * elements + LOSS_GRADIENT
