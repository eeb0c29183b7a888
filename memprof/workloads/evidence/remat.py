"""Checkpointing: what is computed again, where, and what is no longer kept.

JAX names what a checkpoint computes again, so the program tells which modules that is in. XLA may still have merged it
with the forward pass (that is what the barrier is against); where there is a program to compare with, the activations
must be fewer.
"""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence.reading import in_words, most_bytes, no, num_operations, yes
from memprof.workloads.technique import ArgumentValue

_MLP, _ATTENTION = "mlp", "attention"


def attention_and_mlp_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for both parts of the blocks among what is computed again."""
    del argument
    return _computed_again(report, reference, modules=(_ATTENTION, _MLP))


def mlp_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for the MLPs, and not attention, among what is computed again."""
    del argument
    return _computed_again(report, reference, modules=(_MLP,), others=(_ATTENTION,))


def attention_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for attention, and not the MLPs, among what is computed again."""
    del argument
    return _computed_again(report, reference, modules=(_ATTENTION,), others=(_MLP,))


def partly_kept_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for any part of the blocks among what is computed again: which one is up to what is kept."""
    del argument
    modules = tuple(name for name in (_ATTENTION, _MLP) if num_operations(report, Phase.RECOMPUTE, name))
    return _computed_again(report, reference, modules=modules or (_ATTENTION, _MLP))


def offloaded_residuals_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for parts of the blocks among what is computed again, and for host memory in use."""
    verdict = partly_kept_evidence(report, argument, reference)
    host_bytes = report.program.host_bytes
    if host_bytes == 0:
        return no(f"{verdict.evidence}; but the program holds nothing in host memory")
    sentence = f"{verdict.evidence}; the program holds {in_words(host_bytes)} in host memory"
    return Verdict(took_effect=verdict.took_effect, evidence=sentence)


def activation_function_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for anything that is computed again."""
    del argument
    return _anything_computed_again(report, reference)


def _anything_computed_again(report: Report, reference: Report | None) -> Verdict:
    number = report.program.num_recomputed_operations
    if number == 0:
        return no("nothing is computed again in the backward pass")
    return _against(reference, report, f"{number} operations are computed again in the backward pass")


def _computed_again(
    report: Report, reference: Report | None, *, modules: tuple[str, ...], others: tuple[str, ...] = ()
) -> Verdict:
    """Looks for operations of all these modules, and of no others, among what is computed again."""
    if ":" in report.workload:  # a user's loss, whose modules have names of their own
        return _anything_computed_again(report, reference)
    numbers = {name: num_operations(report, Phase.RECOMPUTE, name) for name in modules + others}
    again = ", ".join(f"{number} of {name}" for name, number in numbers.items() if number)
    if not again:
        return no(f"nothing of {' and '.join(modules)} is computed again in the backward pass")
    sentence = f"operations computed again in the backward pass: {again}"
    if not all(numbers[name] for name in modules) or any(numbers[name] for name in others):
        return no(f"{sentence}, where they were expected of {' and '.join(modules)} alone")
    return _against(reference, report, sentence)


def _against(reference: Report | None, report: Report, sentence: str) -> Verdict:
    """Looks for fewer activations than in the reference, where there is one."""
    if reference is None:
        return yes(sentence)
    before, after = most_bytes(reference, Category.ACTIVATIONS), most_bytes(report, Category.ACTIVATIONS)
    compared = f"{sentence}; at most {in_words(after)} of activations at a time, {in_words(before)} in the reference"
    return yes(compared) if after < before else no(compared)
