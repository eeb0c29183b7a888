"""What autograd saves for the backward pass of the built-in steps, by arithmetic, with every technique of PyTorch.

The formulas are written down from what the operations save, not from a trace:

- a linear layer saves its input and its weight; layer norm its input, and a mean and a reciprocal deviation of 4 bytes
  a row; GELU and SiLU their input; softmax and log_softmax their result; dropout a mask of one byte an element;
- a product of two activations saves both operands, and copies those that are not contiguous;
- additions, scaling by a number, views and `masked_fill` save no activation (`masked_fill` saves its mask);
- the loss saves its total weight, a scalar, and the gradient of the loss is a second one.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), count the same for a block:
34 bytes for each element of the residual stream and 5 for each score, with all values but the masks in 16 bits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")

from memprof.analysis.pipeline import analyze  # noqa: E402
from memprof.analysis.records.capture import Capture  # noqa: E402
from memprof.analysis.records.categories import Category  # noqa: E402
from memprof.studies.torch_step import capture_of_step, torch_target  # noqa: E402
from memprof.workloads.torch.build import build  # noqa: E402
from memprof.workloads.torch.plan import OPTIMIZERS, plan  # noqa: E402
from tests.saved_tensors import check_every_moment, gradient_bytes, saved_for_backward  # noqa: E402

pytestmark = pytest.mark.with_one_jax
BATCH, LENGTH, HIDDEN, HEADS, LAYERS, VOCABULARY = 4, 24, 32, 4, 2, 50
WIDTH, TOKENS, SCORES = 4 * HIDDEN, BATCH * LENGTH, BATCH * HEADS * LENGTH * LENGTH
SIZES = (
    *(f"batch_size={BATCH}", f"seq_len={LENGTH}", f"hidden_size={HIDDEN}", f"num_heads={HEADS}"),
    *(f"num_layers={LAYERS}", f"vocab_size={VOCABULARY}"),
    *("dropout_rate=0.1", "attention_dropout_rate=0.1", "embedding_dropout_rate=0.1"),
)
LINEAR_WEIGHTS = LAYERS * 12 * HIDDEN**2 + HIDDEN * VOCABULARY
LOSS = 4 + 4  # the total weight of the loss, and the gradient of the loss
STATISTICS = 2 * 4 * TOKENS  # of a layer norm
CAUSAL_MASKS = LAYERS * LENGTH * LENGTH  # `masked_fill` saves the inverted mask, one byte an element


@dataclass(frozen=True, kw_only=True)
class Bytes:
    """Bytes of an element: of the residual stream, and of inputs and results of matrix products."""

    stream: int = 4
    product: int = 4


F32, HALF, AUTOCAST = Bytes(), Bytes(stream=2, product=2), Bytes(product=2)


def attention(of: Bytes, *, hidden: int = HIDDEN, heads: int = HEADS) -> int:
    """The attention half of a block. `hidden` is the width of all heads."""
    scores = BATCH * heads * LENGTH * LENGTH
    return (
        of.stream * TOKENS * HIDDEN  # the residual stream, which layer norm saves
        + STATISTICS
        + of.product * TOKENS * HIDDEN  # normalised, the input of the projection
        + 3 * of.product * TOKENS * hidden  # contiguous copies of queries, keys and values
        + 4 * scores  # softmax, always in float32
        + scores  # mask of its dropout
        + of.product * scores  # what dropout leaves, an operand of the product with the values
        + of.product * TOKENS * hidden  # attended, in the order of tokens, the input of the output projection
        + TOKENS * HIDDEN  # mask of the dropout
    )


def mlp(of: Bytes, *, width: int = WIDTH) -> int:
    """The MLP half of a block."""
    return (
        of.stream * TOKENS * HIDDEN
        + STATISTICS
        + of.product * TOKENS * HIDDEN  # normalised
        + 2 * of.product * TOKENS * width  # the input of GELU, and its result
        + TOKENS * HIDDEN  # mask of the dropout
    )


def ends(of: Bytes) -> int:
    """All but the blocks: the mask of the embedding's dropout, the final norm, the head and the loss."""
    final_norm = of.stream * TOKENS * HIDDEN + STATISTICS + of.product * TOKENS * HIDDEN
    return TOKENS * HIDDEN + final_norm + 4 * TOKENS * VOCABULARY + LOSS


def plain(of: Bytes = F32) -> int:
    """All activations without a technique."""
    return LAYERS * (attention(of) + mlp(of)) + ends(of)


STREAM = 4 * TOKENS * HIDDEN  # the input of a block or of half of one, which a checkpoint saves
# Products that selective checkpointing keeps: of the projections to 3 * HIDDEN, HIDDEN, WIDTH and HIDDEN.
PRODUCTS = 4 * TOKENS * (3 * HIDDEN + HIDDEN + WIDTH + HIDDEN)


def fused_attention(of: Bytes, scalars: int, rows: int) -> int:
    """The attention half with a fused kernel: no scores, no copies, no mask of their dropout.

    Args:
        scalars: bytes of the random state that the kernel's dropout needs again.
        rows: rows of its log-sum-exp, float32.
    """
    return (
        of.stream * TOKENS * HIDDEN
        + STATISTICS
        + of.product * TOKENS * HIDDEN
        + 3 * of.product * TOKENS * HIDDEN  # the result of the projection, of which queries, keys and values are views
        + of.product * TOKENS * HIDDEN  # attended
        + 4 * BATCH * HEADS * rows
        + scalars
        + TOKENS * HIDDEN
    )


# The memory-efficient kernel pads the rows of its log-sum-exp to 32, and has a seed and an offset of 8 bytes.
EFFICIENT = LAYERS * (fused_attention(F32, 16, 32) + mlp(F32)) + ends(F32)
# The flash kernel has a state of two numbers of 8 bytes, and an unused one.
FLASH_16_BIT = LAYERS * (fused_attention(AUTOCAST, 24, LENGTH) + mlp(AUTOCAST)) + ends(AUTOCAST)
# Half of the heads and hidden units.
SMALLER = LAYERS * (attention(F32, hidden=HIDDEN // 2, heads=HEADS // 2) + mlp(F32, width=WIDTH // 2)) + ends(F32)
# Every chunk computes its logits and its loss again; the division saves the number of tokens, 8 bytes. The gradient of
# the loss stays, its total weight does not.
CHUNKED = plain() - 4 * TOKENS * VOCABULARY - LOSS + 8 + 4

ACTIVATIONS = {
    "baseline": plain(),
    "fp32": plain(),
    "donate": plain(),
    "bf16": plain(AUTOCAST),
    "fp16": plain(AUTOCAST),
    "bf16-params": plain(HALF),
    "accum2": (plain() - LOSS) // 2 + LOSS,  # one minibatch is alive at a time
    "accum2+bf16": (plain(AUTOCAST) - LOSS) // 2 + LOSS,
    "remat": LAYERS * STREAM + ends(F32),
    "remat+bf16": LAYERS * STREAM + ends(AUTOCAST),
    "remat-attn": LAYERS * (STREAM + mlp(F32)) + ends(F32),
    "remat-mlp": LAYERS * (attention(F32) + STREAM) + ends(F32),
    "remat-mlp-attn": LAYERS * 2 * STREAM + ends(F32),
    "remat-act": plain(),  # GELU's input is what the checkpoint saves, and its result is the next layer's input
    "remat-dots": LAYERS * (STREAM + PRODUCTS) + ends(F32),
    "remat-dots+bf16": LAYERS * (STREAM + PRODUCTS // 2) + ends(AUTOCAST),
    "flash": EFFICIENT,
    "flash+bf16": FLASH_16_BIT,
    "chunked-loss=4": CHUNKED,
    "softmax-input": plain() + 4 * LAYERS * SCORES + 4 * TOKENS * VOCABULARY,
    # The fused kernel reads scores of 16 bits; the loss has its logits in float32.
    "softmax-input+fp16": plain(AUTOCAST) + 2 * LAYERS * SCORES + 4 * TOKENS * VOCABULARY,
    # There is no fused kernel from bfloat16: the scores are converted before.
    "softmax-input+bf16": plain(AUTOCAST) + 4 * LAYERS * SCORES + 4 * TOKENS * VOCABULARY,
    "save-on-cpu": 4,  # the gradient of the loss alone
    "prune=0.5": plain() + 4 * LINEAR_WEIGHTS,  # the product of each weight with its mask
    "prune-structured=0.5": SMALLER,
    "offload-opt": plain(),
    "zero-grads": plain(),
    "no-foreach": plain(),
    "fused": plain(),
    **{f"opt={name}": plain() for name in OPTIMIZERS},
}
# Autocast keeps a 16-bit copy of each weight that a product reads, and adds biases without keeping them. Within a
# checkpoint the copies are made again. Layer norm, embeddings and biases have none.
HEAD_COPY = 2 * HIDDEN * VOCABULARY
COPIES = {
    "remat+bf16": HEAD_COPY,
    "remat-dots+bf16": HEAD_COPY,
    **{
        label: 2 * LINEAR_WEIGHTS
        for label in ACTIVATIONS
        if {"bf16", "fp16"} & {*label.split("+")} and "remat" not in label
    },
}
# A checkpoint saves the mask that is handed to it, once for all blocks, and inverts it again; flash applies its own.
ONE_MASK = LENGTH * LENGTH
MASKS = {
    **dict.fromkeys(["remat", "remat+bf16", "remat-attn", "remat-mlp-attn", "remat-dots", "remat-dots+bf16"], ONE_MASK),
    **dict.fromkeys(["flash", "flash+bf16", "save-on-cpu"], 0),
}


@functools.cache
def traced(label: str) -> Capture:
    """The tiny Transformer in the sizes above."""
    step = plan("transformer", preset="tiny", overrides=SIZES, techniques="" if label == "baseline" else label)
    return capture_of_step(partial(build, step), torch_target("t4"))


@pytest.mark.parametrize("label", ACTIVATIONS)
def test_what_the_transformer_saves_by_arithmetic(label: str) -> None:
    assert saved_for_backward(traced(label)) == {
        Category.ACTIVATIONS: ACTIVATIONS[label],
        Category.PARAM_COPIES: COPIES.get(label, 0),
        Category.CONSTANTS: MASKS.get(label, CAUSAL_MASKS),
    }


PARAMETERS = (VOCABULARY + 24) * HIDDEN + LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN) + 2 * HIDDEN
PARAMETERS += HIDDEN * VOCABULARY + VOCABULARY


@pytest.mark.parametrize("label", [each for each in ACTIVATIONS if not each.startswith("prune-structured")])
def test_gradients_by_arithmetic_and_all_sums_at_every_moment(label: str) -> None:
    capture = traced(label)
    size = 2 if "bf16-params" in label else 4
    assert gradient_bytes(capture) == size * PARAMETERS
    check_every_moment(capture, analyze(capture).live_peak_bytes)


def test_the_transformer_of_sixteen_bits_keeps_what_korthikanti_et_al_count() -> None:
    """34 bytes an element of the stream and 5 a score, but for the statistics and softmax's result in float32."""
    block = attention(HALF) + mlp(HALF)
    assert block == 34 * TOKENS * HIDDEN + 5 * SCORES + 2 * STATISTICS + 2 * SCORES
