"""Fused attention: the kernel is there, and the probabilities are not."""

from __future__ import annotations

from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.workloads.evidence import no, yes
from memprof.workloads.intents import Aim, Intent, Means
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig, require

# XLA's names of cuDNN's kernels for both passes begin like this (jaxlib 0.10.2 to 0.12).
_KERNELS = "__cudnn$fmha"
_LEAST_COMPUTE_CAPABILITY = (8, 0)
_MOST_HEAD_WIDTH = 128  # JAX allows 256 on a Hopper, but sees one only where the device itself is there


def flash_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for calls of the kernels, and for the absence of a number for each pair of tokens at the peak."""
    del argument, reference
    num_calls = sum(number for name, number in report.program.library_calls.items() if name.startswith(_KERNELS))
    if not num_calls:
        return no("the program calls no fused attention")
    # By data flow: gradients of queries are square too, where heads are as wide as sequences are long.
    square = [buffer for buffer in report.buffers if buffer.is_of_attention]
    if square:
        return no(
            f"the program calls fused attention, but {square[0].name} still holds a number for each pair of tokens"
        )
    return yes(f"{num_calls} calls of fused attention, and no value at the peak holds a number for each pair of tokens")


def check_config(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` for what cuDNN's attention kernel cannot do."""
    require(
        train_config.compute_dtype != "float32",
        "Technique 'flash' needs half precision, which is all that cuDNN's attention takes: add bf16 or fp16.",
    )
    require(
        config.attention_dropout_rate == 0,
        f"attention_dropout_rate is {config.attention_dropout_rate}, but 'flash' has no dropout of attention"
        " probabilities: set it to 0.",
    )
    require(not config.custom_mask, "custom_mask is true, but 'flash' takes no mask of its own: set it to false.")
    width = config.head_width
    require(
        width % 8 == 0 and width <= _MOST_HEAD_WIDTH,
        f"Attention heads are {width} wide, but 'flash' takes a multiple of 8 up to {_MOST_HEAD_WIDTH}: change"
        " num_heads or head_size.",
    )


def check_target(target: Target) -> None:
    """Raises `MemprofError` for a target that cuDNN's attention kernel does not run on, or here without cuDNN."""
    from memprof.workloads.models.transformer.attention import require_cudnn

    if (target.cuda_capability or (0, 0)) < _LEAST_COMPUTE_CAPABILITY:
        raise MemprofError(
            f"Technique 'flash' needs an NVIDIA GPU of compute capability 8.0 or more, and {target.name} is none:"
            " choose another target, or leave it out."
        )
    if not target.is_deviceless:
        require_cudnn()


FLASH = Technique(
    name="flash",
    about="""Attention by cuDNN's fused kernel, which computes probabilities piece by piece and never holds them.

    What is kept for the backward pass is the result and one number a query, where plain attention keeps numbers that
    grow with the square of the length. It takes half precision, a GPU of compute capability 8.0 or more, and cuDNN
    where the step runs. A compile for an absent GPU needs no cuDNN.

    cuDNN plans its scratch memory on the device. Without one XLA gives these calls none, so a footprint for an absent
    GPU leaves that scratch out.""",
    summary="attention by cuDNN's fused kernel, which never holds the probabilities (half precision only)",
    how_to=HowTo(
        sentence="Attend by cuDNN's fused kernel, with queries, keys and values in half precision.",
        code='attended = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")',
    ),
    reference="Dao et al. 2022, FlashAttention, arXiv:2205.14135",
    family="attention",
    sets={"attention_kernel": "flash"},
    evidence=flash_evidence,
    needs=("bf16",),
    check_config=check_config,
    check_target=check_target,
    shrinks=(Category.ACTIVATIONS,),
    tolerance=2e-2,
)

TECHNIQUES = (FLASH,)


def fused(intent: Intent) -> Means:
    """The kernel takes arrays of 16 bits alone, and drops none of the probabilities."""
    is_wide = intent.dtype == "f32"
    inputs = "*(a.astype(jnp.bfloat16) for a in (q, k, v))" if is_wide else "q, k, v"
    code = f'attended = jax.nn.dot_product_attention({inputs}, implementation="cudnn")  # is_causal=True, if it is'
    if intent.drops:
        return Means(code=code)
    return Means(code=code, technique="+".join((*FLASH.needs, FLASH.name)) if is_wide else FLASH.name)


MEANS = {
    Aim.FUSE_ATTENTION: fused,
    Aim.CHUNK_ATTENTION: Means(
        words="Cut the queries into blocks, and attend with one block at a time, by jax.lax.map with jax.checkpoint "
        "around the attention."
    ),
}
