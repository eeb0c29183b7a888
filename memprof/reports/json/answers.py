"""What `--format json` prints of advice, checks and fits, as typed records (see `report.py`), and all schemas."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, json

from memprof.analysis.records.report import Report
from memprof.reports.json.comparison import ComparisonJson, DiffJson
from memprof.reports.json.fit_curve import FitCurveJson
from memprof.reports.json.memory_profile import MemoryProfileDiffJson, MemoryProfileJson
from memprof.reports.json.report import AdviceJson, ReportJson, advice_json
from memprof.reports.json.runs import ExplanationJson, JobJson
from memprof.reports.json.serving import ServingJson
from memprof.reports.json.types import MaybePressure, Size, VerdictJson, about, filled
from memprof.reports.json.why import WhyJson
from memprof.studies.advice.advice import Advice
from memprof.studies.check.check import CheckResult, Item
from memprof.studies.fit.results import (
    Batch,
    CodeChange,
    FitResult,
    LargerValue,
    Recomputing,
    TechniquesResult,
    TriedTechniques,
)
from memprof.studies.plan.plan import CheckpointPlan

_Techniques = tuple[str, ...]


class AdviceListJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.advice/1"):
    """What could be done about the peak of a step: `memprof advise --format json`."""

    label: str
    target: str
    footprint_bytes: Annotated[Size, about("Of the plan without memory pressure, which the savings are a part of.")]
    verdict: VerdictJson
    pressure: MaybePressure
    advice: tuple[AdviceJson, ...]


class CheckChangeJson(Struct, frozen=True, kw_only=True):
    """What changed against the baseline."""

    what: Literal["category", "module", "buffer"]
    name: str
    before_bytes: Size
    after_bytes: Size


class CheckJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.check/1"):
    """What was checked of a step's memory, how it ended, and what changed against the baseline."""

    label: str
    passed: Annotated[bool, about("Whether every item passed.")]
    footprint_bytes: Size
    verdict: VerdictJson
    pressure: MaybePressure
    items: tuple[Item, ...]
    differences: Annotated[tuple[str, ...], about("Versions and flags that changed since the baseline.")]
    changes: tuple[CheckChangeJson, ...]


class TrialJson(Struct, frozen=True, kw_only=True):
    """One compile of a fit."""

    value: Annotated[int, Meta(ge=1)]
    footprint_bytes: Annotated[Size, about("Of the plan without memory pressure, by which it fits or not.")]
    needed_bytes: Annotated[
        Size, about("The pool that it needs: the footprint, or more where a piece of it finds no place.")
    ]
    pressed_footprint_bytes: Annotated[
        Size | None, about("Of the plan under memory pressure; null if XLA recomputes nothing on its own.")
    ]
    pressure: MaybePressure
    fits: bool
    seconds: Annotated[float, Meta(ge=0), about("What the compile took, with importing and analysing.")]


class FitJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.fit/1"):
    """The largest value of a field with which a step fits, and every compile that was made to find it."""

    subject: Annotated[str, about("The workload or the user's step.")]
    techniques: _Techniques
    target: str
    field: Annotated[str, about("The field that was varied.")]
    value: Annotated[
        int,
        Meta(ge=1),
        about(
            "A value that fits, while next_value does not. Where footprints are not monotone, a larger one may fit too."
        ),
    ]
    next_value: Annotated[int, Meta(ge=2), about("The value after it, which does not fit: value + step.")]
    step: Annotated[int, Meta(ge=1), about("Only multiples of it are valid, or were tried.")]
    footprint_bytes: Annotated[Size, about("Footprint of value.")]
    next_footprint_bytes: Annotated[Size, about("Footprint of next_value.")]
    memory_bytes: Size
    reserve_bytes: Annotated[Size, about("memory_bytes - budget_bytes.")]
    budget_bytes: Annotated[Size, about("The pool that JAX has, less what is to stay free of it.")]
    num_compiles: Annotated[int, Meta(ge=2)]
    tried: Annotated[
        tuple[TrialJson, ...], Meta(min_length=2), about("The compiles in the order in which they were made.")
    ]
    findings: Annotated[
        tuple[str, ...], about("Sentences: where the footprint bends or falls, and where XLA begins to recompute.")
    ]
    recomputing: Annotated[
        Recomputing | None,
        about("Where XLA begins to recompute, which makes steps slower; null if it does in no compile of this fit."),
    ]
    command: Annotated[str, about("The command line that profiles the answer.")]
    mesh: Annotated[str, about("The mesh that it was compiled for: `fsdp=4,tp=2`; empty for one device.")]
    num_devices: Annotated[int, Meta(ge=1), about("Of that mesh; footprints and memory are those of one device.")]
    batch: Annotated[Batch | None, about("The examples of a step with value; null where they are not known.")]
    verdict: VerdictJson
    larger: Annotated[
        LargerValue | None,
        about("What fits if the pool is made as large as the card allows; null where that is no larger value."),
    ]


class FitDevicesJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.fit_devices/1"):
    """The smallest number of devices on which a step fits, and every compile that was made to find it."""

    subject: Annotated[str, about("The workload or the user's step.")]
    techniques: _Techniques
    target: str
    num_devices: Annotated[int, Meta(ge=1), about("On which it fits.")]
    mesh: Annotated[str, about("Their mesh: `fsdp=4,tp=2`; empty for one device.")]
    batch: Annotated[Batch | None, about("The examples of a step; null where they are not known.")]
    footprint_bytes: Annotated[Size, about("Of each of them.")]
    next_num_devices: Annotated[
        int | None, about("The number before it, which is too small; null where the step cannot be compiled for one.")
    ]
    next_footprint_bytes: Annotated[Size | None, about("Of each of those.")]
    memory_bytes: Annotated[Size, about("Of each device.")]
    reserve_bytes: Annotated[Size, about("memory_bytes - budget_bytes.")]
    budget_bytes: Annotated[Size, about("The pool that JAX has, less what is to stay free of it.")]
    num_compiles: Annotated[int, Meta(ge=1)]
    verdict: VerdictJson
    tried: Annotated[
        tuple[TrialJson, ...], Meta(min_length=1), about("The compiles in the order in which they were made.")
    ]
    command: Annotated[str, about("The command line that profiles the answer.")]


class TriedTechniquesJson(Struct, frozen=True, kw_only=True):
    """One combination that was compiled."""

    techniques: _Techniques
    footprint_bytes: Annotated[Size | None, about("null where the compile failed.")]
    fits: bool
    changes_training: Annotated[bool, about("Whether the optimizer is another.")]
    recomputed_flops: Annotated[Size, about("Floating-point operations of a step that are computed again.")]
    host_bytes: Annotated[Size, about("In host memory that the step holds.")]
    at_least_seconds: Annotated[float | None, about("A roofline bound on the time of a step; null where it has none.")]
    step_seconds: Annotated[float | None, about("Median time of the steps that were run; null where none were.")]
    seconds: Annotated[float, Meta(ge=0), about("What lowering and compiling took.")]
    problem: Annotated[str | None, about("Why the compile failed.")]


class FitTechniquesJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.fit_techniques/1"):
    """The cheapest techniques with which a step fits as it is, and every compile that was made to find them."""

    subject: Annotated[str, about("The workload or the user's step.")]
    settings: Annotated[str, about("The preset and the fields that were asked for, in words.")]
    target: str
    memory_bytes: Size
    reserve_bytes: Annotated[Size, about("memory_bytes - budget_bytes.")]
    budget_bytes: Annotated[Size, about("The pool that JAX has, less what is to stay free of it.")]
    answer: Annotated[
        _Techniques | None,
        about("The cheapest techniques that fit: an empty list where none is needed, null where nothing fits."),
    ]
    footprint_bytes: Annotated[Size | None, about("Footprint with the answer.")]
    verdict: Annotated[VerdictJson | None, about("Of the answer; where nothing fits, of the smallest.")]
    command: Annotated[str | None, about("The command line that profiles the answer.")]
    changes: Annotated[tuple[CodeChange, ...], about("How a user does the answer's techniques in code of their own.")]
    num_combinations: Annotated[int, Meta(ge=1), about("How many combinations of the techniques that apply there are.")]
    num_compiles: Annotated[int, Meta(ge=1)]
    num_inferred: Annotated[
        Size,
        about(
            "Combinations cheaper than the answer that were not compiled, since one that should hold less does not fit."
        ),
    ]
    tried: Annotated[
        tuple[TriedTechniquesJson, ...],
        Meta(min_length=1),
        about("Those that fit first, the best at the head, then the others in the order in which they were made."),
    ]
    left_out: Annotated[dict[str, str], about("Techniques that were not considered, each with the reason.")]
    contradictions: Annotated[
        tuple[str, ...], about("Techniques that hold more here than what they were expected to hold less than.")
    ]


class PlanPointJson(Struct, frozen=True, kw_only=True):
    """One compile of a plan."""

    name: Annotated[
        Literal[
            "as it is",
            "donate_state",
            "chunked_loss",
            "chunked_attention",
            "flash_attention",
            "nothing kept",
            "chosen",
            "dots_saveable",
            "dots_with_no_batch_dims_saveable",
        ],
        about("What the layers keep for the backward pass, or a change that was allowed."),
    ]
    footprint_bytes: Annotated[Size, about("Of the compiled plan, without what XLA recomputes on its own.")]
    recomputed_flops: Annotated[int, Meta(ge=0)]
    repeated_seconds: Annotated[
        float, Meta(ge=0), about("The time of the recomputation, by the roofline of each operation: not measured.")
    ]


class PlanJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.plan/1"):
    """Which results of the forward pass a step keeps so that it stays within a budget: `memprof plan`."""

    label: str
    target: str
    budget_bytes: Size
    fits: Annotated[bool, about("Whether a compiled choice is within the budget.")]
    footprint_bytes: Annotated[
        Size, about("Of the plan; where none is within the budget, the smallest that was found.")
    ]
    recomputed_flops: Annotated[int, Meta(ge=0), about("Of the plan, in one step.")]
    num_compiles: Annotated[int, Meta(ge=1), about("With that of the step as it is.")]
    num_blocks: Annotated[int, Meta(ge=0), about("The layers or turns of loops that a checkpoint goes around.")]
    code: Annotated[str, about("The policy to paste; empty where the step fits as it is, or no choice is enough.")]
    repeats: Annotated[
        dict[str, int],
        about("How many collectives and random numbers the plan computes again in a step, by JAX's primitive."),
    ]
    curve: Annotated[
        tuple[PlanPointJson, ...],
        about("Compiles that no other equals or beats in all three, largest footprint first."),
    ]


_DOCUMENTS: Mapping[str, type[Struct]] = {
    "report": ReportJson,
    "comparison": ComparisonJson,
    "diff": DiffJson,
    "advice": AdviceListJson,
    "check": CheckJson,
    "fit": FitJson,
    "fit_curve": FitCurveJson,
    "fit_devices": FitDevicesJson,
    "fit_techniques": FitTechniquesJson,
    "explanation": ExplanationJson,
    "job": JobJson,
    "memory_profile": MemoryProfileJson,
    "memory_profile_diff": MemoryProfileDiffJson,
    "plan": PlanJson,
    "serving": ServingJson,
    "why": WhyJson,
}


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON schema of each document, by name."""
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {name: {**draft, **json.schema(kind)} for name, kind in _DOCUMENTS.items()}


def advice_list_json(report: Report, advice: Sequence[Advice]) -> AdviceListJson:
    """What `memprof advise` prints."""
    each = tuple(map(advice_json, advice))
    return filled(
        AdviceListJson,
        report,
        target=report.target.name,
        footprint_bytes=report.unpressed.footprint_bytes,
        advice=each,
    )


def check_json(result: CheckResult) -> CheckJson:
    """What is printed of a check."""
    return filled(CheckJson, result)


def fit_json(result: FitResult) -> FitJson | FitDevicesJson:
    """What is printed of a fit."""
    budget_bytes, before = result.budget_bytes, result.next_value
    facts = {
        "footprint_bytes": result.footprint_of(result.value),
        "next_footprint_bytes": None if before is None else result.footprint_of(before),
        "num_compiles": len(result.tried),
        "tried": [filled(TrialJson, trial, fits=trial.fits(budget_bytes)) for trial in result.tried],
    }
    if result.is_of_devices:
        return filled(FitDevicesJson, result, num_devices=result.value, next_num_devices=before, **facts)
    return filled(FitJson, result, findings=result.findings(), **facts)


def fit_techniques_json(result: TechniquesResult) -> FitTechniquesJson:
    """What is printed of a fit over techniques."""
    answer = result.answer
    return filled(
        FitTechniquesJson,
        result,
        answer=None if answer is None else answer.techniques,
        footprint_bytes=None if answer is None else answer.footprint_bytes,
        command=result.command or None,
        num_compiles=result.num_compiled,
        tried=[_tried(each, result.budget_bytes) for each in (*result.ranked, *result.others)],
    )


def _tried(tried: TriedTechniques, budget_bytes: int) -> TriedTechniquesJson:
    return filled(
        TriedTechniquesJson,
        tried,
        fits=tried.fits(budget_bytes),
        changes_training=tried.cost.changes_training,
        recomputed_flops=tried.cost.recomputed_flops,
        problem=tried.problem or None,
    )


def plan_json(plan: CheckpointPlan) -> PlanJson:
    """What `memprof plan` prints."""
    shown = plan.best or min(plan.points, key=lambda point: point.footprint_bytes)
    return filled(
        PlanJson,
        plan,
        target=plan.target.name,
        fits=plan.best is not None,
        footprint_bytes=shown.footprint_bytes,
        recomputed_flops=shown.recomputed_flops,
        num_compiles=len(plan.points),
        curve=[filled(PlanPointJson, point) for point in plan.curve],
    )
