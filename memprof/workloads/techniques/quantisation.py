"""Quantisation at inference: weights, or keys and values, as narrow numbers with scales."""

from __future__ import annotations

from functools import partial

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.workloads.evidence import in_words, most_bytes, no, total_bytes, used_arguments, yes
from memprof.workloads.intents import Aim, Means
from memprof.workloads.technique import Observation, Technique

_KERNEL = "['kernel']"


def weights_evidence(dtype: str, seen: Observation) -> Verdict:
    """Looks for kernels that the program takes in that dtype alone, beside their scales."""
    params = used_arguments(seen.report, Role.PARAMS)
    kernels = [leaf for leaf in params if _KERNEL in leaf.path]
    narrow = [leaf for leaf in kernels if leaf.dtype == dtype]
    scales = [leaf for leaf in kernels if leaf.path.endswith("['scale']")]
    others = total_bytes(params) - total_bytes((*narrow, *scales))
    sentence = (
        f"the program takes {in_words(total_bytes(narrow))} of weights in {dtype}, {in_words(total_bytes(scales))} "
        f"of scales and {in_words(others)} of other parameters; copies of weights take at most "
        f"{in_words(most_bytes(seen.report, Category.PARAM_COPIES))}"
    )
    return yes(sentence) if narrow and len(narrow) + len(scales) == len(kernels) else no(sentence)


def int8_kv_evidence(seen: Observation) -> Verdict:
    """Looks for a cache of 8-bit integers beside their scales."""
    cache = used_arguments(seen.report, Role.KV_CACHE)
    integers = total_bytes(leaf for leaf in cache if leaf.dtype == "int8")
    others = total_bytes(cache) - integers
    sentence = f"the cache is {in_words(integers)} of int8 and {in_words(others)} of scales"
    return yes(sentence) if 0 < others < integers else no(sentence)


def fp8_kv_evidence(seen: Observation) -> Verdict:
    """Looks for a cache of 8-bit floats."""
    cache = used_arguments(seen.report, Role.KV_CACHE)
    dtypes = sorted({leaf.dtype for leaf in cache})
    sentence = f"the cache is {in_words(total_bytes(cache))} of {', '.join(dtypes) or 'no array'}"
    return yes(sentence) if dtypes == ["float8_e4m3fn"] else no(sentence)


INT8_WEIGHTS = Technique(
    name="int8-weights",
    about="""Hold the kernels of all projections as 8-bit integers, with a scale for each column.

    Embeddings, norms and biases stay as they are, and so do the logits of a tied embedding. Scales have the dtype of
    the parameters. They multiply the results of a product: XLA then converts the integers inside the product, and no
    array holds the weights in another dtype. A loop over layers copies the integers of one layer at a time.""",
    summary="kernels in 8-bit integers, with a scale for each column",
    instruction="Hold the kernels as integers, and multiply the result of the product by the scales of the columns.",
    code="""def quantised(weights):  # once
    scale = jnp.max(jnp.abs(weights), 0) / 127
    return jnp.round(weights / scale).astype(jnp.int8), scale


def product(inputs, weights, scale):
    return (inputs @ weights.astype(inputs.dtype)) * scale""",
    reference="Dettmers et al. 2022, LLM.int8(), arXiv:2208.07339, section 2.1",
    sets={"weight_dtype": "int8"},
    evidence=partial(weights_evidence, "int8"),
    shrinks=(Category.PARAMS,),
    tolerance=None,
)

INT4_WEIGHTS = Technique(
    name="int4-weights",
    about="""Hold the kernels of all projections as 4-bit integers, with a scale for each 128 rows of a column.

    A byte holds two numbers. A kernel whose number of rows is not a multiple of 128 has one scale for each column. A
    step with few tokens adds up each group before it multiplies by the scales; a step with many tokens dequantizes one
    kernel at a time, which shows in `param_copies`.""",
    summary="kernels in 4-bit integers, with a scale for each 128 rows of a column",
    instruction="Hold the kernels as 4-bit integers in groups of rows, each with its scales.",
    code="""def quantised(weights):  # once
    groups = weights.reshape(-1, 128, weights.shape[-1])
    scale = jnp.max(jnp.abs(groups), 1) / 7
    return jnp.round(groups / scale[:, None]).astype(jnp.int4), scale


def product(inputs, weights, scale):
    groups = inputs.reshape(len(inputs), -1, 128)
    return jnp.einsum("bgr,grc,gc->bc", groups, weights.astype(inputs.dtype), scale)""",
    reference="Frantar et al. 2022, GPTQ, arXiv:2210.17323, section 5; Lin et al. 2023, AWQ, arXiv:2306.00978",
    sets={"weight_dtype": "int4"},
    evidence=partial(weights_evidence, "int4"),
    shrinks=(Category.PARAMS,),
    tolerance=None,
)

FP8_WEIGHTS = Technique(
    name="fp8-weights",
    about="""Hold the kernels of all projections as 8-bit floats (float8_e4m3fn), with a scale for each column.

    They take as much memory as 8-bit integers, and are finer near zero: 3 bits of precision, and exponents from -6 to
    8. Products are in the compute dtype: only weights are quantized, so every GPU supports it.""",
    summary="kernels in 8-bit floats, with a scale for each column",
    instruction="Hold the kernels as 8-bit floats, and multiply the result of the product by the scales of the"
    " columns.",
    code="""def quantised(weights):  # once
    scale = jnp.max(jnp.abs(weights), 0) / 448
    return (weights / scale).astype(jnp.float8_e4m3fn), scale


def product(inputs, weights, scale):
    return (inputs @ weights.astype(inputs.dtype)) * scale""",
    reference="Micikevicius et al. 2022, FP8 Formats for Deep Learning, arXiv:2209.05433",
    sets={"weight_dtype": "float8"},
    evidence=partial(weights_evidence, "float8_e4m3fn"),
    shrinks=(Category.PARAMS,),
    tolerance=None,
)

INT8_KV = Technique(
    name="int8-kv",
    about="""Hold keys and values in the cache as 8-bit integers, with a float32 scale for each token and head.

    The cache takes a quarter of float32, or half of bfloat16, and the scales. They are dequantized when attention reads
    them: `forward_temps` shows whether XLA does so inside the product or makes a copy.""",
    summary="the cache in 8-bit integers, with a scale for each token and head",
    instruction="Write rounded integers and their scales into the cache, and multiply them when attention reads them.",
    code="""def quantised(keys):
    scale = jnp.max(jnp.abs(keys), -1) / 127
    return jnp.round(keys / scale[..., None]).astype(jnp.int8), scale


def read(keys, scale, dtype):
    return keys.astype(dtype) * scale[..., None].astype(dtype)""",
    reference="Sheng et al. 2023, FlexGen, arXiv:2303.06865, section 5",
    sets={"cache_dtype": "int8"},
    evidence=int8_kv_evidence,
    shrinks=(Category.KV_CACHE,),
    tolerance=None,
)

FP8_KV = Technique(
    name="fp8-kv",
    about="""Hold keys and values in the cache as 8-bit floats (float8_e4m3fn), without scales.

    The cache takes a quarter of float32, or half of bfloat16. Numbers beyond 448 are clipped. The exponents of floats
    replace scales, at 3 bits of precision.""",
    summary="the cache in 8-bit floats, without scales",
    instruction="Cast keys and values when they are written into the cache, and back when attention reads them.",
    code="k, v = (jnp.clip(each, -448, 448).astype(jnp.float8_e4m3fn) for each in (k, v))",
    reference="Micikevicius et al. 2022, FP8 Formats for Deep Learning, arXiv:2209.05433",
    sets={"cache_dtype": "float8"},
    evidence=fp8_kv_evidence,
    shrinks=(Category.KV_CACHE,),
    tolerance=None,
)

TECHNIQUES = (INT8_WEIGHTS, INT4_WEIGHTS, FP8_WEIGHTS, INT8_KV, FP8_KV)
MEANS = {
    Aim.SCALE_RESULTS: Means(
        words="Multiply the result of each product, not the weights, by the scale: the product takes the cast integers."
    )
}
