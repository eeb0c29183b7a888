"""Fused attention: the kernel is there, and the probabilities are not."""

from __future__ import annotations

from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category
from memprof.errors import MemprofError
from memprof.workloads.evidence import no, yes
from memprof.workloads.intents import Aim, Intent, Means
from memprof.workloads.technique import Observation, Technique
from memprof.workloads.train_config import TrainConfig, require

# XLA's names of cuDNN's kernels for both passes begin like this.
_KERNELS = "__cudnn$fmha"
_MIN_COMPUTE_CAPABILITY = (8, 0)
_MAX_HEAD_WIDTH = 128  # JAX allows 256 on a Hopper, but sees one only where the device itself is there


def flash_evidence(seen: Observation) -> Verdict:
    """Looks for calls of the kernels, and for the absence of a number for each pair of tokens at the peak."""
    num_calls = sum(number for name, number in seen.report.program.library_calls.items() if name.startswith(_KERNELS))
    if not num_calls:
        return no("the program calls no fused attention")
    # By data flow: gradients of queries are square too, where heads are as wide as sequences are long.
    square = [buffer for buffer in seen.report.buffers if buffer.is_of_attention]
    if square:
        return no(
            f"the program calls fused attention, but {square[0].name} still holds a value for each pair of tokens"
        )
    return yes(f"{num_calls} calls of fused attention, and no buffer at the peak holds a value for each pair of tokens")


def check_config(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` for what cuDNN's attention kernel cannot do."""
    require(
        train_config.compute_dtype != "float32",
        "Technique 'flash' needs half precision, because cuDNN's attention supports no other: add bf16 or fp16.",
    )
    require(
        config.attention_dropout_rate == 0,
        f"attention_dropout_rate is {config.attention_dropout_rate}, but 'flash' does not support dropout of "
        "attention probabilities: set it to 0.",
    )
    require(not config.custom_mask, "custom_mask is true, but 'flash' does not support custom masks: set it to false.")
    width = config.head_width
    require(
        width % 8 == 0 and width <= _MAX_HEAD_WIDTH,
        f"Attention heads are {width} wide, but 'flash' needs a multiple of 8 up to {_MAX_HEAD_WIDTH}: change"
        " num_heads or head_size.",
    )


def check_target(target: Target) -> None:
    """Raises `MemprofError` for a target that cuDNN's attention kernel does not run on, or here without cuDNN."""
    from memprof.workloads.models.transformer.attention import require_cudnn

    if (target.cuda_capability or (0, 0)) < _MIN_COMPUTE_CAPABILITY:
        raise MemprofError(
            f"Technique 'flash' needs an NVIDIA GPU of compute capability 8.0 or more, and {target.name} is not one: "
            "choose another target, or leave 'flash' out."
        )
    if not target.is_deviceless:
        require_cudnn()


FLASH = Technique(
    name="flash",
    about="""Attend with cuDNN's fused kernel, which computes probabilities block by block and never stores them.

    The backward pass needs only the result and one number per query; plain attention keeps arrays that grow with the
    square of the sequence length. The kernel needs half precision, a GPU of compute capability 8.0 or more, and cuDNN
    on the machine that runs the step. A compile for an absent GPU needs no cuDNN.

    cuDNN plans its scratch memory on the device. Without a device, XLA reserves none for these calls, so a footprint
    for an absent GPU does not include it.""",
    summary="attention by cuDNN's fused kernel, which never stores the probabilities (half precision only)",
    instruction="Attend with cuDNN's fused kernel, with queries, keys and values in half precision.",
    code='attended = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")',
    reference="Dao et al. 2022, FlashAttention, arXiv:2205.14135",
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
        words="Split the queries into blocks and attend with one block at a time, using jax.lax.map with "
        "jax.checkpoint around the attention."
    ),
}
