"""The document of a checkpoint plan: the choice within the budget, and all compiles that led to it."""

from __future__ import annotations

from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.rewrites import Donation
from memprof.reports.document import Document, Heading, Note, Table, Tone
from memprof.reports.units import format_bytes, format_flops, format_short_seconds
from memprof.reports.views.cells import exact_size, facts_of
from memprof.reports.views.fields import Field, bar, number, table, text
from memprof.studies.plan.plan import NOTHING_KEPT, CheckpointPlan, PlanPoint, ranking_seconds

_CAUTION = "Footprints are the compiler's (XLA's buffer assignment). The {} are those of the original step"

_BOUND = "Bounds are the least times by the roofline, not measured."
_FASTEST = (
    "The plan has the least sum of both bounds, of all compiles within the budget: recomputation takes longer than its"
    " bound."
)
_CAN_BE_FASTER = "Checkpoints can also make a step with a scan faster: --curve compiles some."
_NO_GRADIENTS = (
    "The step computes no gradients, so checkpoints do not help. --allow tries other changes to a step of your own, and"
    " -t techniques of a workload."
)
_OFFER = "With --offload, results of the layers may also wait in host memory for the backward pass"


def plan_document(plan: CheckpointPlan) -> Document:
    """Build the document: the answer first, then its evidence. The code (`CheckpointPlan.code`) is printed after it."""
    num_compiles, has_blocks = len(plan.points), plan.placement.num_blocks > 0
    has_checkpoints = any(point.checkpoints is not None for point in plan.points)
    facts = {
        "target": (plan.target.name,),
        "budget": exact_size(plan.budget_bytes),
        "changes": [each.rule for each in plan.changes],
        "checkpoints": (f"around {plan.placement.num_blocks:,} {_blocks(plan)}",) if has_checkpoints else (),
    }
    return Document(
        blocks=(
            Heading(text=_answer(plan), level=1, aside=plan.label),
            facts_of(facts),
            Heading(text="Compiled", level=2, aside="1 compile" if num_compiles == 1 else f"{num_compiles} compiles"),
            _points(plan),
            *((Note(text=_repeats(plan), tone=Tone.ACCENT),) if plan.repeats else ()),
            *((Note(text=_waiting(plan.best), tone=Tone.ACCENT),) if plan.best and plan.best.is_offloading else ()),
            *((Note(text=_NO_GRADIENTS, tone=Tone.ACCENT),) if plan.best is None and not has_blocks else ()),
            *((Note(text=_OFFER, tone=Tone.ACCENT),) if _could_offload(plan) else ()),
            *(Note(text=each, tone=Tone.ACCENT) for each in filter(None, [_faster(plan)])),
            *((Note(text=_times(plan), tone=Tone.MUTED),) if _has_bounds(plan) else ()),
            Note(
                text=f"{_CAUTION.format('gradients' if has_blocks else 'results')}{_exactness(plan)}", tone=Tone.MUTED
            ),
        )
    )


def _blocks(plan: CheckpointPlan) -> str:
    if not plan.placement.has_blocks:
        names = " and ".join(each.title for each in plan.placement.functions)
        return f"{'call' if plan.placement.num_blocks == 1 else 'calls'} of {names}"
    unit = ("loop iterations", "loop iteration") if plan.placement.is_loop else ("blocks of equal operations", "block")
    return unit[plan.placement.num_blocks == 1]


def _answer(plan: CheckpointPlan) -> str:
    if plan.best is None:
        least = min(point.footprint_bytes for point in plan.points)
        return f"No compile is within the budget: the smallest takes {format_bytes(least)}"
    size = format_bytes(plan.best.footprint_bytes)
    if plan.best.checkpoints is None:
        changes = " and ".join(each.rule for each in plan.changes)
        return f"The step fits with {changes}: {size}" if changes else f"The step fits as it is: {size}"
    host = f" and {format_bytes(plan.best.host_bytes)} in host memory" if plan.best.is_offloading else ""
    return f"{size}, with {format_flops(plan.best.recomputed_flops)} recomputed{host}"


def _repeats(plan: CheckpointPlan) -> str:
    names = ", ".join(f"{name} ({count:,} times)" for name, count in sorted(plan.repeats.items()))
    return (
        f"The plan also recomputes {names}. A recomputed collective runs twice; recomputed random numbers are the same,"
        " because their key is."
    )


def _could_offload(plan: CheckpointPlan) -> bool:
    """Whether offloading may help, and was not tried."""
    is_known = plan.target.speeds is not None and family_of(plan.target.platform).offloads
    return plan.best is None and plan.placement.is_loop and is_known and not plan.may_offload


def _waiting(point: PlanPoint) -> str:
    waiting = format_short_seconds(point.waiting_seconds)
    return f"The step waits at least {waiting} for transfers (roofline of XLA's schedule, not measured)."


def _faster(plan: CheckpointPlan) -> str:
    """Say that a step that fits without checkpoints is faster with them; empty if no compile shows it.

    If none has been compiled and the step has a scan, say that checkpoints can make it faster.
    """
    if plan.best is None or plan.best.checkpoints is not None or not _has_bounds(plan):
        return ""
    within = [each for each in plan.points if each.footprint_bytes <= plan.best.footprint_bytes and each.checkpoints]
    if not any(point.checkpoints for point in plan.points):
        return _CAN_BE_FASTER if plan.placement.is_loop else ""
    seconds = ranking_seconds(plan.points)
    fastest = min(within, key=seconds, default=plan.best)
    if seconds(fastest) >= seconds(plan.best):
        return ""
    fewest, without = (format_short_seconds(seconds(each)) for each in (fastest, plan.best))
    return (
        f"The step fits without checkpoints, but is faster with some ({fastest.name}), by the sum of both bounds:"
        f" {fewest} instead of {without}. --allow none, with a --memory below"
        f" {format_bytes(plan.best.footprint_bytes)}, plans checkpoints."
    )


def _has_bounds(plan: CheckpointPlan) -> bool:
    """Whether steps have bounds. Plans are ranked by them only if all have one."""
    return all(point.at_least_seconds is not None for point in plan.points)


def _times(plan: CheckpointPlan) -> str:
    return _BOUND if plan.checkpoints is None else f"{_BOUND} {_FASTEST}"


def _exactness(plan: CheckpointPlan) -> str:
    is_rounded = any(each.rewrite is not None and not isinstance(each.rewrite, Donation) for each in plan.changes)
    if is_rounded:
        return ", apart from rounding."
    return ": a checkpoint only recomputes values." if plan.placement.num_blocks else "."


def _points(plan: CheckpointPlan) -> Table:
    def kept(point: PlanPoint) -> str:
        has_size = point.checkpoints is not None and point.kept_bytes and point.name != NOTHING_KEPT
        size = f" ({format_bytes(point.kept_bytes)})" if has_size else ""
        parts = f" in {point.num_parts} parts" if point.num_parts > 1 else ""
        return f"{point.name}{parts}{size}{_mixture(plan, point)}{_groups(point)}"

    offloading: list[Field[PlanPoint]] = [
        number("on the host", lambda point: format_bytes(point.host_bytes) if point.is_offloading else ""),
        number(
            "waits at least", lambda point: format_short_seconds(point.waiting_seconds) if point.is_offloading else ""
        ),
    ]

    def bound(point: PlanPoint) -> str:
        return "" if point.at_least_seconds is None else format_short_seconds(point.at_least_seconds)

    def repeated(point: PlanPoint) -> str:
        return format_short_seconds(point.repeated_seconds) if point.repeated_seconds else ""

    def fits(point: PlanPoint) -> str:
        is_within = "yes" if point.footprint_bytes <= plan.budget_bytes else "no"
        return f"{is_within} \u2190 the plan" if point is plan.best else is_within

    return table(
        sorted(plan.points, key=lambda point: point.footprint_bytes, reverse=True),
        [
            text("kept for the backward pass" if plan.placement.num_blocks else "compile", kept),
            number("footprint", lambda point: format_bytes(point.footprint_bytes)),
            bar(lambda point: point.footprint_bytes, priority=1),
            number("recomputed", lambda point: format_flops(point.recomputed_flops)),
            *([number("its bound", repeated)] if any(point.repeated_seconds for point in plan.points) else []),
            *([number("step's bound", bound)] if _has_bounds(plan) else []),
            *(offloading if any(point.is_offloading for point in plan.points) else []),
            text("within the budget", fits),
        ],
    )


def _mixture(plan: CheckpointPlan, point: PlanPoint) -> str:
    """Describe how many blocks have which checkpoint, if the blocks differ."""
    if point.checkpoints is None or point.num_first is None:
        return ""
    rest = "no checkpoint" if point.checkpoints.kept_by_rest is None else "another policy"
    return f", {rest} around the last {plan.placement.num_blocks - point.num_first}"


def _groups(point: PlanPoint) -> str:
    """Describe groups of iterations or layers."""
    return "" if point.group_size is None else f", in groups of {point.group_size}"
