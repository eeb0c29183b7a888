"""Precision: the types that a step computes in and holds its parameters in.

Some of what is live at the peak stays float32 on purpose (logits, the softmax of attention), so half precision shows as
a part of the bytes, not as all of them.
"""

from __future__ import annotations

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.workloads.evidence import in_words, no, undecided, used_arguments, yes
from memprof.workloads.intents import Aim, Means
from memprof.workloads.technique import Observation, Technique

# XLA's names of the floating-point types that a technique can choose.
_FLOATS = ("f32", "bf16", "f16")
_COMPUTED = (
    Category.ACTIVATIONS,
    Category.RECOMPUTED,
    Category.FORWARD_TEMPS,
    Category.COTANGENTS,
    Category.PARAM_COPIES,
)

_TOO_LITTLE = 1000  # of the footprint; sums and means are in float32 whatever the network's values are in


def float32_evidence(seen: Observation) -> Verdict:
    """Looks for the absence of half precision."""
    computed, params = _computed_bytes(seen.report), {leaf.dtype for leaf in used_arguments(seen.report, Role.PARAMS)}
    if computed["bf16"] + computed["f16"] == 0 and params == {"float32"}:
        return yes("no value of the network at the peak is in half precision, and parameters are float32")
    return no(f"at the peak the network's values are {_shares(computed)}, parameters {', '.join(sorted(params))}")


def bfloat16_evidence(seen: Observation) -> Verdict:
    """Looks for values of the network in bfloat16."""
    return _half_precision(seen.report, "bf16")


def float16_evidence(seen: Observation) -> Verdict:
    """Looks for values of the network in float16, and for the scale of the loss."""
    verdict = _half_precision(seen.report, "f16")
    scales = [leaf.path for leaf in used_arguments(seen.report, Role.OTHER_STATE) if leaf.path.endswith(".scale")]
    if not scales and seen.report.config.get("phase", "training") == "training":
        return no(f"{verdict.evidence}, and the program takes no loss scale")
    if not scales:  # inference has no loss
        return verdict
    return Verdict(took_effect=verdict.took_effect, evidence=f"{verdict.evidence}; the loss scale is an argument")


def bfloat16_params_evidence(seen: Observation) -> Verdict:
    """Looks for parameters in bfloat16."""
    params = used_arguments(seen.report, Role.PARAMS)
    dtypes = {leaf.dtype for leaf in params}
    if dtypes == {"bfloat16"}:
        size = in_words(sum(leaf.size_bytes for leaf in params))
        return yes(f"the program takes all {seen.report.num_params} parameters in bfloat16, {size}")
    return no(f"the program takes parameters in {', '.join(sorted(dtypes))}")


def _half_precision(report: Report, dtype: str) -> Verdict:
    computed = _computed_bytes(report)
    if sum(computed.values()) * _TOO_LITTLE < report.footprint_bytes or not any(computed.values()):
        return undecided(
            f"only {in_words(sum(computed.values()))} of the network's values are live at the peak, too little to "
            "show their precision"
        )
    sentence = f"at the peak the network's values are {_shares(computed)}"
    return yes(sentence) if computed[dtype] else no(sentence)


def _computed_bytes(report: Report) -> dict[str, int]:
    """Bytes of the network's values at the peak, by floating-point type."""
    computed = dict.fromkeys(_FLOATS, 0)
    for buffer in report.buffers:
        if buffer.category in _COMPUTED and buffer.dtype in computed:
            computed[buffer.dtype] += buffer.size_bytes
    return computed


def _shares(computed: dict[str, int]) -> str:
    total = sum(computed.values())
    if not total:
        return "none (the peak is in the update)"
    return ", ".join(f"{100 * size / total:.0f}% {dtype}" for dtype, size in computed.items() if size)


_CAST = "jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, {})"
_CAST_PASSES = f"params, batch = {_CAST.format('(params, batch)')}  # in the loss; Flax: Model(dtype=jnp.bfloat16)"
_CAST_WEIGHTS = f"params = {_CAST.format('params')}  # once, before the first call"

FP32 = Technique(
    name="fp32",
    about="""Compute in float32 throughout, and say so in the label.

    The baseline does the same. A label such as `fp32+scan+accum4` makes it explicit beside rows in other precisions.
    """,
    summary="everything in float32, as in the baseline",
    instruction="Compute and hold the parameters in float32, which is JAX's default.",
    reference="IEEE 754-2019, binary32",
    sets={"compute_dtype": "float32", "param_dtype": "float32", "loss_scaling": False},
    evidence=float32_evidence,
    restates_baseline=True,
    tolerance=0.0,
)

BF16 = Technique(
    name="bf16",
    about="""Compute matrix products and activations in bfloat16; keep parameters and optimizer state in float32.

    bfloat16 has the exponent range of float32, so no loss scaling is needed; it has 8 bits of precision, so softmax,
    logits, loss and the update stay in float32. Activations halve. The cost is a bfloat16 copy of each weight matrix,
    kept from the forward pass to the backward pass.""",
    summary="compute in bfloat16; parameters, optimizer state, softmax, logits and loss in float32",
    instruction="Compute in bfloat16 from the float32 parameters, and take softmax, logits and loss in float32.",
    code=_CAST_PASSES,
    reference="Kalamkar et al. 2019, A Study of BFLOAT16 for Deep Learning Training, arXiv:1905.12322",
    sets={"compute_dtype": "bfloat16", "param_dtype": "float32", "loss_scaling": False},
    evidence=bfloat16_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.PARAM_COPIES,),
    tolerance=2e-2,
)

BF16_PARAMS = Technique(
    name="bf16-params",
    about="""Hold the parameters in bfloat16 as well, and compute in it.

    Parameters halve, and so do their gradients. By default, optax creates optimizer state in the dtype of the
    parameters, so the moments halve as well. The cost does not show in memory: a weight cannot change by less than
    1/256 of itself in one step, so late in a training run small updates are lost.""",
    summary="compute in bfloat16, with parameters and, by optax's defaults, optimizer state in bfloat16, too",
    instruction="Compute in bfloat16, and hold the parameters and the optimizer state in it, too.",
    code=_CAST_WEIGHTS,
    reference="Zamirai et al. 2020, Revisiting BFloat16 Training, arXiv:2010.06192",
    sets={"compute_dtype": "bfloat16", "param_dtype": "bfloat16", "loss_scaling": False},
    evidence=bfloat16_params_evidence,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.ACTIVATIONS),
    tolerance=5e-2,
)

FP16 = Technique(
    name="fp16",
    about="""Compute matrix products and activations in float16, with a dynamic loss scale.

    float16 has more precision than bfloat16 (11 bits against 8) and far less range: gradients below 6e-8 become zero.
    So the loss is multiplied by a factor before it is differentiated, and the gradients are divided by it. The factor
    starts at 65536, doubles after 2000 good steps, and halves when a gradient is not finite; that step is skipped, and
    the state is unchanged. Because a step may be skipped, the update must wait for the last gradient: all gradients are
    in memory at once.
    """,
    summary="compute in float16 with dynamic loss scaling; steps with non-finite gradients are skipped",
    instruction="Compute in float16 from the float32 parameters, and scale the loss by a factor that adapts itself:"
    " `flax.training.dynamic_scale.DynamicScale().value_and_grad`.",
    reference="Micikevicius et al. 2018, Mixed Precision Training, arXiv:1710.03740",
    sets={"compute_dtype": "float16", "param_dtype": "float32", "loss_scaling": True},
    evidence=float16_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.PARAM_COPIES, Category.OTHER_STATE, Category.GRADIENTS),
    tolerance=5e-3,
)

TECHNIQUES = (FP32, BF16, BF16_PARAMS, FP16)
MEANS = {
    # No line would do: other float32 arrays of the model make its results float32 again, or are refused by
    # convolutions and scans.
    Aim.CAST_PASSES: Means(
        words="At the start of the loss, cast the parameters and the batch to bfloat16, and also the float32 arrays"
        " that the model makes itself, such as initial states, masks and noise; in Flax, pass dtype=jnp.bfloat16 to"
        " the modules. Cast the results to float32 before the loss is computed from them.",
        technique=BF16.name,
    ),
    Aim.CAST_WEIGHTS: Means(code=_CAST_WEIGHTS, technique=BF16_PARAMS.name),
    Aim.CAST_WEIGHTS_AND_CACHE: Means(
        words="Cast the parameters to bfloat16 once, before the first call, and make the cache in bfloat16, too: a step"
        " cannot write keys of one dtype into a cache of another. Also cast the step's own float32 arrays, such as"
        " masks, tables and scales: they would make keys and values float32 again.",
        technique=BF16_PARAMS.name,
    ),
    Aim.CONVERT_WEIGHTS_ONCE: Means(
        words="Convert the weights once, before the first call, as the step does now, and pass the results to the step."
    ),
}
