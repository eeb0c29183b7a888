"""The precision that a program computes in: the dtype of its activations, and of its parameters.

Some of what is live at the peak stays float32 on purpose (logits, the softmax of attention), so half precision shows as
a part of the bytes, not as all of them.
"""

from __future__ import annotations

from memprof.analysis.categories import Category, Role
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence.reading import in_words, no, used_arguments, yes
from memprof.workloads.technique import ArgumentValue

# XLA's names of the floating-point types that a technique can choose.
_FLOATS = ("f32", "bf16", "f16")
_COMPUTED = (
    Category.ACTIVATIONS,
    Category.RECOMPUTED,
    Category.FORWARD_TEMPS,
    Category.COTANGENTS,
    Category.PARAM_COPIES,
)


def float32_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for the absence of half precision."""
    del argument, reference
    computed, params = _computed_bytes(report), {leaf.dtype for leaf in used_arguments(report, Role.PARAMS)}
    if computed["bf16"] + computed["f16"] == 0 and params == {"float32"}:
        return yes("no value of the network at the peak is in half precision, and parameters are float32")
    return no(f"at the peak the network's values are {_shares(computed)}, parameters {', '.join(sorted(params))}")


def bfloat16_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for values of the network in bfloat16."""
    del argument, reference
    return _half_precision(report, "bf16")


def float16_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for values of the network in float16, and for the scale of the loss."""
    del argument, reference
    verdict = _half_precision(report, "f16")
    scales = [leaf.path for leaf in used_arguments(report, Role.OTHER_STATE) if leaf.path.endswith(".scale")]
    if not scales:
        return no(f"{verdict.evidence}, and the program takes no loss scale")
    return Verdict(took_effect=verdict.took_effect, evidence=f"{verdict.evidence}; the loss scale is an argument")


def bfloat16_params_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for parameters in bfloat16."""
    del argument, reference
    params = used_arguments(report, Role.PARAMS)
    dtypes = {leaf.dtype for leaf in params}
    if dtypes == {"bfloat16"}:
        size = in_words(sum(leaf.size_bytes for leaf in params))
        return yes(f"the program takes all {report.num_params} parameters in bfloat16, {size}")
    return no(f"the program takes parameters in {', '.join(sorted(dtypes))}")


def _half_precision(report: Report, dtype: str) -> Verdict:
    computed = _computed_bytes(report)
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
