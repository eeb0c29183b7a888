"""What `--format json` prints of advice, checks and fits, as typed records (see `report.py`), and all schemas."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
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
# One entry of the section `Attributes`, with its further lines.
_ATTRIBUTE = re.compile(r"^ {4}([a-z_]+(?:, [a-z_]+)*): (.*\n(?: {8}.*\n)*)", re.MULTILINE)


class AdviceListJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.advice/1"):
    """Changes that lower the peak of a step: `memprof advise --format json`."""

    label: str
    target: str
    footprint_bytes: Annotated[
        Size, about("Footprint of the plan without memory pressure; the savings are relative to it.")
    ]
    verdict: VerdictJson
    pressure: MaybePressure
    advice: tuple[AdviceJson, ...]


class CheckChangeJson(Struct, frozen=True, kw_only=True):
    """One change against the baseline."""

    what: Literal["category", "module", "buffer"]
    name: str
    before_bytes: Size
    after_bytes: Size


class CheckJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.check/1"):
    """The checks of a step's memory, their outcome, and the changes against the baseline."""

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
    footprint_bytes: Annotated[
        Size, about("Footprint of the plan without memory pressure, which decides whether it fits.")
    ]
    needed_bytes: Annotated[
        Size, about("The pool that it needs: the footprint, or more if a piece of it finds no place.")
    ]
    pressed_footprint_bytes: Annotated[
        Size | None, about("Footprint of the plan under memory pressure; null if XLA recomputes nothing on its own.")
    ]
    pressure: MaybePressure
    fits: bool
    seconds: Annotated[float, Meta(ge=0), about("Time of the compile, with importing and analysing.")]


class FitJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.fit/1"):
    """The largest value of a field with which a step fits, and all compiles of the search."""

    subject: Annotated[str, about("The workload or the user's step.")]
    techniques: _Techniques
    target: str
    field: Annotated[str, about("The field that was varied.")]
    value: Annotated[
        int,
        Meta(ge=1),
        about(
            "A value that fits, while next_value does not. If footprints are not monotone, a larger value may fit, too."
        ),
    ]
    next_value: Annotated[int, Meta(ge=2), about("The value after it, which does not fit: value + step.")]
    step: Annotated[int, Meta(ge=1), about("Only multiples of it are valid, or were tried.")]
    footprint_bytes: Annotated[Size, about("Footprint of value.")]
    next_footprint_bytes: Annotated[Size, about("Footprint of next_value.")]
    memory_bytes: Size
    reserve_bytes: Annotated[Size, about("memory_bytes - budget_bytes.")]
    budget_bytes: Annotated[Size, about("JAX's pool, less the bytes that must stay free.")]
    num_compiles: Annotated[int, Meta(ge=2)]
    tried: Annotated[tuple[TrialJson, ...], Meta(min_length=2), about("All compiles, in order.")]
    findings: Annotated[
        tuple[str, ...],
        about("Sentences about values at which the footprint grows more slowly or falls, or XLA begins to recompute."),
    ]
    recomputing: Annotated[
        Recomputing | None,
        about("The range in which XLA begins to recompute, which makes steps slower; null if no compile shows it."),
    ]
    command: Annotated[str, about("The command line that profiles the answer.")]
    mesh: Annotated[str, about("The mesh that it was compiled for: `fsdp=4,tp=2`; empty for one device.")]
    num_devices: Annotated[
        int, Meta(ge=1), about("Number of devices of that mesh; footprints and memory are those of one device.")
    ]
    batch: Annotated[Batch | None, about("The number of examples of a step with value; null if it is unknown.")]
    verdict: VerdictJson
    larger: Annotated[
        LargerValue | None,
        about("The largest value that fits if the pool is made as large as the card allows; null if it is no larger."),
    ]


class FitDevicesJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.fit_devices/1"):
    """The smallest number of devices on which a step fits, and all compiles of the search."""

    subject: Annotated[str, about("The workload or the user's step.")]
    techniques: _Techniques
    target: str
    num_devices: Annotated[int, Meta(ge=1), about("The smallest number on which it fits.")]
    mesh: Annotated[str, about("Their mesh: `fsdp=4,tp=2`; empty for one device.")]
    batch: Annotated[Batch | None, about("The number of examples of a step; null if it is unknown.")]
    footprint_bytes: Annotated[Size, about("Footprint on each of them.")]
    next_num_devices: Annotated[
        int | None, about("The number before it, which is too small; null if the step cannot be compiled for it.")
    ]
    next_footprint_bytes: Annotated[Size | None, about("Footprint on each of these.")]
    memory_bytes: Annotated[Size, about("Memory of each device.")]
    reserve_bytes: Annotated[Size, about("memory_bytes - budget_bytes.")]
    budget_bytes: Annotated[Size, about("JAX's pool, less the bytes that must stay free.")]
    num_compiles: Annotated[int, Meta(ge=1)]
    verdict: VerdictJson
    tried: Annotated[tuple[TrialJson, ...], Meta(min_length=1), about("All compiles, in order.")]
    command: Annotated[str, about("The command line that profiles the answer.")]


class TriedTechniquesJson(Struct, frozen=True, kw_only=True):
    """One compiled combination."""

    techniques: _Techniques
    footprint_bytes: Annotated[Size | None, about("Footprint; null if the compile failed.")]
    fits: bool
    changes_training: Annotated[bool, about("Whether another optimizer is used.")]
    recomputed_flops: Annotated[Size, about("Recomputed FLOPs of a step.")]
    host_bytes: Annotated[Size, about("Host memory that the step holds.")]
    at_least_seconds: Annotated[float | None, about("A roofline bound on the time of a step; null if it has no bound.")]
    step_seconds: Annotated[float | None, about("Median time of a step; null if it was not run.")]
    seconds: Annotated[float, Meta(ge=0), about("Time of lowering and compiling.")]
    problem: Annotated[str | None, about("The reason why the compile failed; null if it did not.")]


class FitTechniquesJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.fit_techniques/1"):
    """The cheapest techniques with which an unchanged step fits, and all compiles of the search."""

    subject: Annotated[str, about("The workload or the user's step.")]
    settings: Annotated[str, about("The preset and the requested fields, in words.")]
    target: str
    memory_bytes: Size
    reserve_bytes: Annotated[Size, about("memory_bytes - budget_bytes.")]
    budget_bytes: Annotated[Size, about("JAX's pool, less the bytes that must stay free.")]
    answer: Annotated[
        _Techniques | None,
        about("The cheapest techniques that fit; empty if the step fits without any, null if nothing fits."),
    ]
    footprint_bytes: Annotated[Size | None, about("Footprint with the answer.")]
    verdict: Annotated[
        VerdictJson | None, about("The verdict on the answer; if nothing fits, on the smallest combination.")
    ]
    command: Annotated[str | None, about("The command line that profiles the answer.")]
    changes: Annotated[tuple[CodeChange, ...], about("How to apply the answer's techniques in your own code.")]
    num_combinations: Annotated[int, Meta(ge=1), about("Number of combinations of all techniques that apply.")]
    num_compiles: Annotated[int, Meta(ge=1)]
    num_inferred: Annotated[
        Size,
        about("Number of cheaper combinations that were not compiled, because one that should hold less does not fit."),
    ]
    tried: Annotated[
        tuple[TriedTechniquesJson, ...],
        Meta(min_length=1),
        about("All compiles: those that fit first, best first, then the others in order."),
    ]
    left_out: Annotated[dict[str, str], about("Techniques that were not considered, with the reason.")]
    contradictions: Annotated[
        tuple[str, ...], about("Sentences about techniques that hold more than others, against the expected order.")
    ]


class PlanPointJson(Struct, frozen=True, kw_only=True):
    """One compile of a plan."""

    name: Annotated[
        Literal[
            "as it is",
            "donate_state",
            "whole_prompt_logits",
            "accumulated_gradients",
            "chunked_examples",
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
    waiting_seconds: Annotated[
        float,
        Meta(ge=0),
        about("The least time that a step waits for offloaded results, by XLA's schedule and the link: not measured."),
    ]
    at_least_seconds: Annotated[
        float | None,
        about("The roofline bound of the compiled step, not measured; null if too little of it is priced."),
    ]
    host_bytes: Annotated[Size, about("Host memory that the step needs.")]
    kept_bytes: Annotated[
        Size, about("Size of the results that all layers or iterations keep at a time, by JAX's program.")
    ]
    predicted_bytes: Annotated[
        Size | None, about("The footprint as predicted from the earlier compiles; null for the unchanged step.")
    ]
    group_size: Annotated[
        Size | None,
        about("Number of layers or iterations that share another checkpoint; null if there are no groups."),
    ]
    num_first: Annotated[
        Size | None,
        about("Number of first layers that keep these results, if the last ones keep others; otherwise null."),
    ]


class PlanJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.plan/1"):
    """Which results of the forward pass a step keeps so that it stays within a budget: `memprof plan`."""

    label: str
    target: str
    budget_bytes: Size
    fits: Annotated[bool, about("Whether a compiled choice is within the budget.")]
    footprint_bytes: Annotated[Size, about("Of the plan; if none is within the budget, of the smallest compile.")]
    recomputed_flops: Annotated[int, Meta(ge=0), about("Of the plan, in one step.")]
    num_compiles: Annotated[int, Meta(ge=1), about("Including that of the unchanged step.")]
    num_blocks: Annotated[int, Meta(ge=0), about("The layers or loop iterations under a checkpoint.")]
    code: Annotated[str, about("The policy to paste; empty if the step fits as it is, or no choice is enough.")]
    repeats: Annotated[
        dict[str, int],
        about("Numbers of collectives and random numbers that the plan recomputes in a step, by JAX's primitive."),
    ]
    curve: Annotated[
        tuple[PlanPointJson, ...],
        about("Pareto-optimal compiles in memory, FLOPs and time, largest footprint first."),
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
    """Return the JSON schema of each document, by name. Its descriptions are those of the types."""
    return {name: _schema(name, kind) for name, kind in _DOCUMENTS.items()}


def _schema(name: str, kind: type[Struct]) -> dict[str, Any]:
    made = json.schema(kind)
    _name_keys(made, made["$defs"])
    for definition in made["$defs"].values():
        _describe(definition)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{name}.schema.json", **made}


def _name_keys(part: Any, definitions: Mapping[str, Any]) -> None:
    """List the possible keys of an object once, in its own schema: msgspec 0.23 refers to their type."""
    if isinstance(part, dict):
        type_of_keys = part.get("propertyNames", {}).get("$ref", "").rpartition("/")[2]
        if type_of_keys and "properties" in part:
            del part["propertyNames"]
        elif type_of_keys:
            part["propertyNames"] = {"enum": definitions[type_of_keys]["enum"]}
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _name_keys(each, definitions)


def _describe(definition: dict[str, Any]) -> None:
    """Turn a docstring into descriptions: of the record without its `Attributes`, and of each attribute."""
    text, _, attributes = cleandoc(definition.get("description", "")).partition("\n\nAttributes:\n")
    if text:
        paragraphs = text.split("\n\n")[: 1 if "enum" in definition else None]  # the rest is for developers
        definition["description"] = " ".join(" ".join(paragraphs).split())
    for names, meaning in _ATTRIBUTE.findall(f"{attributes}\n"):
        for name in names.split(", "):
            if name in definition.get("properties", {}):
                sentence = " ".join(meaning.split())
                definition["properties"][name].setdefault("description", f"{sentence[:1].upper()}{sentence[1:]}")


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
        num_blocks=plan.placement.num_blocks,
        curve=[filled(PlanPointJson, point) for point in plan.curve],
    )
