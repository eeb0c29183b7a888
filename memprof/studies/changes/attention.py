"""Compute a step's attentions with cuDNN's fused kernel. Data flow identifies them (see `attention_search.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memprof.analysis.records.rewrites import FusedAttention
from memprof.sources.jax.checkpointing.attention_search import fused
from memprof.sources.jax.checkpointing.attentions import Attention
from memprof.sources.jax.compile import traced_jaxpr
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.chunks import least_bytes
from memprof.studies.changes.own_jit import changed_step, step_of_code, with_rewrite
from memprof.workloads.intents import Aim, Intent

_MIN_CAPABILITY = (8, 0)  # of cuDNN's kernel
_DTYPES = {"bfloat16": "bf16", "float16": "f16"}  # of the kernel


def attention_kernels(step: Step) -> Iterator[Change]:
    """Yield the step with a fused kernel in place of its attentions, if the target has one for them."""
    if step.is_composed or (step.target.cuda_capability or (0, 0)) < _MIN_CAPABILITY:
        return
    found: list[Attention] = []
    changed = changed_step(step.spec, lambda fn: fused(fn, FusedAttention(), found))
    if changed is None:
        return
    try:
        traced_jaxpr(changed, step.target)
    except (NotImplementedError, RuntimeError):  # JAX's reasons why cuDNN cannot compute an attention
        return
    held_bytes = sum(each.probability_bytes for each in found) // step.target.topology.num_devices
    if not found or held_bytes < least_bytes(step):
        return
    applied = with_rewrite(step.spec, FusedAttention())
    assert applied is not None
    code, _ = applied
    calls = list(dict.fromkeys(f"# {_place(each)}: {each.call}" for each in found))
    head, line = code.rsplit("\n\n", 1)
    code = "\n".join([head, "", "# computes each of these attentions as", *calls, line])
    rounded = _rounded_bias(found)
    yield Change(
        rule="flash_attention",
        intent=Intent(aim=Aim.FUSE_ATTENTION, dtype=_DTYPES[found[0].dtype]),
        what="Use an attention kernel that never stores the probabilities",
        evidence=f"attentions found by data flow: {len(found)}; the probabilities of the largest take"
        f" {max(each.probability_bytes for each in found):,} bytes",
        cost="no time, it is usually faster; it needs cuDNN, whose scratch memory is only known on the device"
        + (f"; {rounded}" if rounded else ""),
        code=code,
        spec=step_of_code(step.spec, code),
        on_cpu=step_of_code(step.spec, code.replace("FusedAttention()", 'FusedAttention(implementation="xla")')),
        rewrite=FusedAttention(),
    )


def _rounded_bias(attentions: list[Attention]) -> str:
    """Say whether a bias loses digits: the kernel takes it in the dtype of the queries."""
    for each in attentions:
        for bias in each.biases:
            dtype = bias.atom.aval.dtype
            if dtype.itemsize > each.query.atom.aval.dtype.itemsize:
                return f"it takes the bias in {each.dtype}, not in {dtype}: a large one, such as ALiBi's, is rounded"
    return ""


def _place(attention: Attention) -> str:
    return "an attention" if attention.place is None else f"{Path(attention.place[0]).name}:{attention.place[1]}"
