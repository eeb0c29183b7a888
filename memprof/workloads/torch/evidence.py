"""Evidence that a technique took effect in a traced step of PyTorch.

    for verdict in verdicts(report, ("bf16", "remat"), reference=baseline_report):
        print(verdict.took_effect, verdict.evidence)

A trace shows the operations that run, the values that they make, and what stays in memory between steps. Checkpoints
and parameters' types are looked for as in a compiled program (`workloads/techniques`). Needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report, TracedFacts
from memprof.errors import MemprofError
from memprof.workloads.composition import parse_techniques
from memprof.workloads.evidence import (
    in_words,
    is_same_program,
    most_bytes,
    no,
    total_bytes,
    undecided,
    used_arguments,
    yes,
)
from memprof.workloads.technique import ArgumentValue, Evidence, Observation
from memprof.workloads.techniques.precision import bfloat16_params_evidence
from memprof.workloads.torch.plan import (
    FUSED,
    NO_FOREACH,
    OWN_TECHNIQUES,
    RANK_DIVISOR,
    SAVE_ON_CPU,
    SOFTMAX_INPUT,
    ZERO_GRADS,
)

_HALF = ("bf16", "f16")
_ATTENTION = "aten._scaled_dot_product_"
_SOFTMAX = "aten._softmax"
_CROSS_ENTROPY = "aten.nll_loss_forward"


def verdicts(report: Report, labels: Sequence[str], reference: Report | None) -> tuple[Verdict, ...]:
    """Return whether each technique took effect.

    Args:
        report: report of a traced step.
        labels: its techniques.
        reference: report to compare with. A technique is only compared with it if the reference has none but other
            techniques of the row.
    """
    found = []
    for label in labels:
        look, argument = _evidence(label)
        if look is not None:
            theirs = set() if reference is None else {each for each in reference.techniques if each != "baseline"}
            is_contrast = reference is not None and reference.framework == "torch" and theirs <= {*labels} - {label}
            verdict = look(Observation(report, argument, reference if is_contrast else None))
            found.append(replace(verdict, evidence=f"{label}: {verdict.evidence}"))
    return tuple(found)


def _evidence(label: str) -> tuple[Evidence | None, ArgumentValue | None]:
    if label in OWN_TECHNIQUES:
        return _OF_OWN[label], None
    try:
        (applied,) = parse_techniques(label)
    except MemprofError:  # of another memprof version
        return None, None
    return _OF_SHARED.get(applied.technique.name, applied.technique.evidence), applied.argument


def _traced(report: Report) -> TracedFacts:
    assert report.program.traced is not None
    return report.program.traced


def _num_calls(report: Report, *beginnings: str) -> int:
    return sum(number for name, number in report.program.library_calls.items() if name.startswith(beginnings))


def _float32(seen: Observation) -> Verdict:
    made, params = _traced(seen.report).forward_bytes, {leaf.dtype for leaf in used_arguments(seen.report, Role.PARAMS)}
    sentence = f"the forward pass makes {_shares(made)}, and parameters are {', '.join(sorted(params))}"
    return yes(sentence) if params == {"float32"} and not any(made.get(each) for each in _HALF) else no(sentence)


def _half_precision(dtype: str) -> Evidence:
    def evidence(seen: Observation) -> Verdict:
        made = _traced(seen.report).forward_bytes
        sentence = f"the forward pass makes {_shares(made)}"
        if not made.get(dtype):
            return no(sentence)
        if dtype == "f16" and not any(leaf.path.startswith("scaler") for leaf in seen.report.arguments):
            return no(f"{sentence}, but the step has no loss scale")
        return yes(sentence)

    return evidence


def _shares(made: Mapping[str, int]) -> str:
    floats = {dtype: made[dtype] for dtype in ("f32", *_HALF) if made.get(dtype)}
    return ", ".join(f"{in_words(size)} in {dtype}" for dtype, size in floats.items()) or "no floating-point values"


def _accumulation(seen: Observation) -> Verdict:
    number = _traced(seen.report).num_backward_passes
    sentence = f"a step has {number} forward and backward passes for its updates"
    return yes(sentence) if number == seen.argument != 1 else no(f"{sentence}, but {seen.argument} were expected")


def _updates_in_place(seen: Observation) -> Verdict:
    outputs = seen.report.categories[Category.OUTPUTS]
    sentence = f"the optimizer updates in place: {in_words(outputs)} of new state beside the old one"
    return no(sentence) if outputs else yes(sentence)


def _fused_attention(seen: Observation) -> Verdict:
    fused, plain = _num_calls(seen.report, _ATTENTION), _num_calls(seen.report, _SOFTMAX)
    if not fused:
        return no("the step calls no fused attention")
    sentence = f"{fused} calls of fused attention, and {plain} of softmax, which would make the probabilities"
    return no(sentence) if plain else yes(sentence)


def _loss_in_chunks(seen: Observation) -> Verdict:
    """Looks for the loss of each chunk, recomputed in the backward pass, and for the full logits."""
    number, passes = _num_calls(seen.report, _CROSS_ENTROPY), max(1, _traced(seen.report).num_backward_passes)
    assert isinstance(seen.argument, int)
    sentence = f"{number} cross-entropies in {passes} passes"
    if seen.argument == 1 or number != 2 * seen.argument * passes:
        return no(f"{sentence}, but {seen.argument} chunks, each computed twice, were expected")
    labels = sum(leaf.num_elements for leaf in used_arguments(seen.report, Role.BATCH) if "labels" in leaf.path)
    words = max(
        (leaf.shape[0] for leaf in used_arguments(seen.report, Role.PARAMS) if "token_emb" in leaf.path), default=0
    )
    full = labels // passes * words
    if any(prod(buffer.shape) == full and words == buffer.shape[-1] for buffer in seen.report.buffers if buffer.shape):
        return no(f"{sentence}, but a value at the peak holds all {full} logits")
    return yes(f"{sentence}: {seen.argument} chunks, each computed twice; no value at the peak holds all logits")


def _optimizer(seen: Observation) -> Verdict:
    held = _state(seen.report)
    expected: Counter[tuple[tuple[int, ...], str]] = Counter()
    for leaf in used_arguments(seen.report, Role.PARAMS):
        expected.update(_STATES[str(seen.argument)](leaf))
    size = in_words(total_bytes(used_arguments(seen.report, Role.OPTIMIZER_STATE)))
    if held != expected:
        return no(f"the step holds {size} of optimizer state, but not the tensors that {seen.argument} keeps")
    if seen.reference is not None and held == _state(seen.reference) and is_same_program(seen.report, seen.reference):
        return no(f"the step holds {size} of optimizer state, as the reference does, and its operations are the same")
    return yes(f"the step holds {size} of optimizer state: exactly the tensors that {seen.argument} keeps")


def _state(report: Report) -> Counter[tuple[tuple[int, ...], str]]:
    """Return the tensors of the optimizer's state without counters of steps."""
    return Counter((leaf.shape, leaf.dtype) for leaf in used_arguments(report, Role.OPTIMIZER_STATE) if leaf.shape)


_State = list[tuple[tuple[int, ...], str]]


def _like_params(number: int) -> Callable[[ArgumentLeaf], _State]:
    return lambda leaf: number * [(leaf.shape, leaf.dtype)]


def _factored(leaf: ArgumentLeaf) -> _State:
    if len(leaf.shape) < 2:
        return [(leaf.shape, leaf.dtype)]
    *rest, rows, columns = leaf.shape
    return [((*rest, rows, 1), leaf.dtype), ((*rest, 1, columns), leaf.dtype)]


def _of_8_bits(leaf: ArgumentLeaf) -> _State:
    if leaf.num_elements < 4096:
        return 2 * [(leaf.shape, "float32")]
    return [(leaf.shape, "int8"), (leaf.shape, "uint8"), *2 * [((-(-leaf.num_elements // 256),), "float32")]]


def _projected(leaf: ArgumentLeaf) -> _State:
    if len(leaf.shape) != 2 or "embedding" in leaf.path or min(leaf.shape) < RANK_DIVISOR:
        return 2 * [(leaf.shape, leaf.dtype)]
    (rows, columns), rank = leaf.shape, min(leaf.shape) // RANK_DIVISOR
    low = (rank, columns) if rows <= columns else (rows, rank)
    return [((min(leaf.shape), rank), leaf.dtype), *2 * [(low, leaf.dtype)]]


# The tensors that each optimizer keeps for a parameter, without counters of steps.
_STATES: dict[str, Callable[[ArgumentLeaf], _State]] = {
    "adafactor": _factored,
    "adagrad": _like_params(1),
    "adam": _like_params(2),
    "adam8bit": _of_8_bits,
    "adamw": _like_params(2),
    "galore": _projected,
    "rmsprop": _like_params(1),
    "sgd": _like_params(0),
}


def _gradients_kept(seen: Observation) -> Verdict:
    kept, params = _traced(seen.report).kept_gradient_bytes, total_bytes(used_arguments(seen.report, Role.PARAMS))
    sentence = f"a step begins with {in_words(kept)} of gradients in memory, beside {in_words(params)} of parameters"
    return yes(sentence) if kept >= params else no(sentence)


def _one_by_one(seen: Observation) -> Verdict:
    number = _num_calls(seen.report, "aten._foreach_")
    sentence = f"a step calls {number} operations on lists of tensors"
    return no(sentence) if number else yes(sentence)


def _fused_update(seen: Observation) -> Verdict:
    number = _num_calls(seen.report, "aten._fused_")
    temps = most_bytes(seen.report, Category.UPDATE_TEMPS)
    sentence = f"a step calls {number} fused updates, with {in_words(temps)} of temporaries"
    return yes(sentence) if number else no(sentence)


def _saved_on_host(seen: Observation) -> Verdict:
    moved = _traced(seen.report).moved_to_host_bytes
    sentence = f"a step copies {in_words(moved)} to host memory for its backward pass"
    return yes(sentence) if moved else no(sentence)


def _softmax_input(seen: Observation) -> Verdict:
    if seen.reference is None:
        return undecided("its effect shows only in comparison with a row without it")
    before, after = most_bytes(seen.reference, Category.ACTIVATIONS), most_bytes(seen.report, Category.ACTIVATIONS)
    sentence = f"at most {in_words(after)} of activations at a time, {in_words(before)} in the reference"
    return yes(sentence) if after > before else no(sentence)


def _masks(seen: Observation) -> Verdict:
    masks = {leaf.path: leaf for leaf in used_arguments(seen.report, Role.OTHER_STATE) if leaf.path.endswith("_mask")}
    pruned = [leaf for leaf in used_arguments(seen.report, Role.PARAMS) if leaf.path.endswith("_orig")]
    sentence = f"the step holds {len(masks)} masks for {len(pruned)} weights, {in_words(total_bytes(masks.values()))}"
    expected = {f"{leaf.path.removesuffix('_orig')}_mask": leaf.shape for leaf in pruned}
    return yes(sentence) if pruned and {k: m.shape for k, m in masks.items()} == expected else no(sentence)


def _state_on_host(seen: Observation) -> Verdict:
    state = total_bytes(used_arguments(seen.report, Role.OPTIMIZER_STATE))
    moved = _traced(seen.report).moved_to_host_bytes
    sentence = (
        f"a step copies {in_words(moved)} to host memory after its update; the optimizer state has {in_words(state)},"
        f" and the step holds {in_words(seen.report.program.host_bytes)} there"
    )
    is_away = moved >= state > 0 and seen.report.program.host_bytes >= state
    return (
        yes(sentence) if is_away and seen.report.timeline.base.get(Category.OPTIMIZER_STATE, 0) == 0 else no(sentence)
    )


# Techniques that show in a trace otherwise than in a compiled program; the others have the evidence of `techniques/`.
_OF_SHARED: dict[str, Evidence] = {
    "fp32": _float32,
    "bf16": _half_precision("bf16"),
    "bf16-params": bfloat16_params_evidence,
    "fp16": _half_precision("f16"),
    "accum": _accumulation,
    "accum-loop": _accumulation,
    "donate": _updates_in_place,
    "flash": _fused_attention,
    "chunked-loss": _loss_in_chunks,
    "opt": _optimizer,
    "prune": _masks,
    "offload-opt": _state_on_host,
}
_OF_OWN: dict[str, Evidence] = {
    ZERO_GRADS: _gradients_kept,
    NO_FOREACH: _one_by_one,
    FUSED: _fused_update,
    SAVE_ON_CPU: _saved_on_host,
    SOFTMAX_INPUT: _softmax_input,
}
