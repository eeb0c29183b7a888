"""The techniques that `memprof fit --techniques auto` chooses among, by family, and their costs known in advance.

Techniques that keep the training unchanged come first. Those that need host memory or another optimizer are used only
if no others suffice. Some techniques are left out: those that save no memory in themselves (`scan`, `prune`), those
that change the model (`prune-structured`), and `flash`, whose scratch memory a compile without the device does not
show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.studies.fit.cheapest import Choice, Cost, Family
from memprof.studies.subject import Subject
from memprof.workloads.composition import check_target, parse_techniques

# Recomputed FLOPs of steps with these techniques, or the sentence why they cannot be traced.
CountRecomputed = Callable[[Sequence[str]], Sequence[int | str]]

_HOST: Final = Cost(moves_to_host=True)
_OTHER_TRAINING: Final = Cost(changes_training=True)
# Within a family a higher level should hold less. Recomputation is not listed here: it is counted.
_LADDER: Final[Mapping[str, tuple[Choice, ...]]] = {
    "structure": (Choice(label="donate", level=1),),
    "precision": (Choice(label="bf16", level=1, cost=Cost(effort=1)),),
    "loss": (Choice(label="chunked-loss=8", level=1),),
    "checkpointing": (
        Choice(label="remat-dots", level=1),
        Choice(label="remat-mlp", level=1),
        Choice(label="remat-attn", level=1),
        Choice(label="remat-mlp-attn", level=2),
        Choice(label="remat", level=2),
        Choice(label="remat-offload", level=2, cost=_HOST),
    ),
    "accumulation": (),  # the divisors of the batch
    "offload": (Choice(label="offload-opt", level=1, cost=_HOST),),
    "optimizer": (
        Choice(label="opt=adafactor", level=1, cost=_OTHER_TRAINING),
        Choice(label="opt=adam8bit", level=1, cost=_OTHER_TRAINING),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The families of a subject, and the reasons why other techniques are not among them, by label."""

    families: tuple[Family, ...]
    left_out: Mapping[str, str]


def find_ladder(subject: Subject, plain: Report, count_recomputed: CountRecomputed) -> Ladder:
    """Return the techniques that apply to a subject, with their costs.

    Args:
        plain: the subject's report without any technique, for its target.
        count_recomputed: counts FLOPs for labels of techniques; called at most once.

    Raises:
        MemprofError: no technique applies; the sentence is the reason of the first one.
    """
    ladder = {**_LADDER, "accumulation": _accumulation(plain)}
    needless: dict[str, str] = {}
    if plain.categories[Category.OPTIMIZER_STATE] <= plain.categories[Category.PARAMS]:
        reason = "the optimizer state is no larger than the parameters, so another optimizer would save little"
        needless = {choice.label: reason for choice in ladder.pop("optimizer")}
    labels = [choice.label for choices in ladder.values() for choice in choices]
    refused = _refusals(subject, plain, labels)
    counted = [each for each in labels if each not in refused and (_recomputes(each) or not subject.is_built_in)]
    counts = dict(zip(counted, count_recomputed(counted) if counted else (), strict=True))
    untraceable = {label: count for label, count in counts.items() if isinstance(count, str)}
    left_out = untraceable | refused | needless
    families = tuple(
        Family(name=name, choices=(_none_of(choices), *(_with_cost(choice, counts) for choice in choices)))
        for name, all_choices in ladder.items()
        if (choices := [choice for choice in all_choices if choice.label not in left_out])
    )
    if not families:
        raise MemprofError(next(iter(left_out.values())))
    return Ladder(families=families, left_out=left_out)


def _accumulation(plain: Report) -> tuple[Choice, ...]:
    """Return divisors of the batch, each at least twice the previous one; empty without a common first axis."""
    sizes = {leaf.shape[:1] for leaf in plain.arguments if leaf.role is Role.BATCH}
    if len(sizes) != 1 or sizes == {()}:
        return ()
    ((num_examples,),) = sizes
    divisors = [1]
    for number in range(2, num_examples + 1):
        if num_examples % number == 0 and number >= 2 * divisors[-1]:
            divisors.append(number)
    return tuple(Choice(label=f"accum{number}", level=number, cost=Cost(effort=number)) for number in divisors[1:])


def _refusals(subject: Subject, plain: Report, labels: Sequence[str]) -> dict[str, str]:
    """Return why techniques do not apply to a built-in workload or to the target; user code must be traced."""
    refusals = {}
    for label in labels:
        try:
            subject.plan(label)
            check_target(parse_techniques(label), plain.target)
        except MemprofError as error:
            refusals[label] = str(error)
    return refusals


def _recomputes(label: str) -> bool:
    (applied,) = parse_techniques(label)
    return Category.RECOMPUTED in applied.technique.grows


def _none_of(choices: Sequence[Choice]) -> Choice:
    """Return the choice of no technique. It has no level if another choice also takes memory."""
    grown = {
        category for choice in choices for each in parse_techniques(choice.label) for category in each.technique.grows
    }
    return Choice(label="", level=None if grown - {Category.RECOMPUTED} else 0)


def _with_cost(choice: Choice, counts: Mapping[str, int | str]) -> Choice:
    count = counts.get(choice.label, 0)
    assert isinstance(count, int)
    return replace(choice, cost=choice.cost + Cost(recomputed_flops=count))
