"""The documents of a fit, by a field or over techniques: the answer, the budget, and all trials."""

from __future__ import annotations

from collections.abc import Callable

from memprof.analysis.memory.verdict import fraction_line
from memprof.reports.document import Align, Block, Cell, Column, Document, Facts, Heading, Note, Row, Table, Tone
from memprof.reports.units import (
    format_bytes,
    format_flops,
    format_seconds,
    format_short_seconds,
    format_signed_bytes,
)
from memprof.reports.views.cells import exact_size, facts_of
from memprof.reports.views.fields import Field, Fields, number, table, text
from memprof.studies.fit.results import CurvePoint, FitCurve, FitResult, TechniquesResult, Trial, TriedTechniques

_BUDGET = "the memory pool minus the reserve"


def fit_document(result: FitResult) -> Document:
    """Build the document of a fit by a field: the answer first, then its evidence."""
    return Document(
        blocks=(
            Heading(text=_value_answer(result), level=1, aside=_name(result)),
            _value_facts(result),
            Heading(text="Tried", level=2, aside=f"{len(result.tried)} compiles, by {result.field}"),
            _tried_values(result),
            *_value_notes(result),
        )
    )


def _value_answer(result: FitResult) -> str:
    answer = f"{result.field}={result.value} fits"
    return answer if result.next_value is None else f"{answer}, {result.next_value} does not"


def _batch(result: FitResult) -> tuple[str, ...]:
    """Return the batch size in total and on each device, because the name of the field does not distinguish them."""
    if result.batch is None or result.num_devices == 1:
        return ()
    return (f"{result.batch.in_all} in all", f"{result.batch.on_a_device} on each of {result.num_devices} devices")


def _value_facts(result: FitResult) -> Facts:
    of_each = () if result.num_devices == 1 else ("of each device",)
    beyond = {}
    if result.next_value is not None:
        size_bytes = result.footprint_of(result.next_value)
        beyond = {f"{result.field}={result.next_value}": exact_size(size_bytes, "does not fit")}
    return facts_of(
        {
            "target": _target(result),
            "memory": exact_size(result.memory_bytes, *of_each),
            "budget": exact_size(result.budget_bytes, _BUDGET),
            f"{result.field}={result.value}": exact_size(result.footprint_of(result.value), "fits"),
            **beyond,
            "batch": _batch(result),
        }
    )


def _target(result: FitResult) -> tuple[str, ...]:
    return (result.target, *([f"mesh {result.mesh}"] if result.mesh else []))


def _name(result: FitResult) -> str:
    return " ".join(part for part in (result.subject, "+".join(result.techniques)) if part)


def _tried_values(result: FitResult) -> Table:
    def pressure(trial: Trial) -> str:
        if trial.pressure is None:
            return ""
        count = trial.pressure.recomputed_values
        return f"{count:,} value{'' if count == 1 else 's'}"

    pressed: Fields[Trial] = (
        number("XLA recomputes", pressure),
        number("and takes", lambda trial: format_bytes(trial.pressed_footprint_bytes or 0) if trial.pressure else ""),
    )
    return table(
        sorted(result.tried, key=lambda trial: trial.value),
        [
            number(result.field, lambda trial: str(trial.value)),
            number("footprint", lambda trial: format_bytes(trial.footprint_bytes)),
            number(
                "against budget",
                lambda trial: format_signed_bytes(trial.needed_bytes - result.budget_bytes),
                priority=1,
            ),
            text("fits", lambda trial: _fits_cell(trial.fits(result.budget_bytes))),
            number("time", lambda trial: format_seconds(trial.seconds), priority=2),
            *(pressed if any(trial.pressure is not None for trial in result.tried) else ()),
        ],
    )


def _fits_cell(fits: bool) -> Cell:
    text, tone = ("yes", Tone.GOOD) if fits else ("no", Tone.BAD)
    return Cell(text=text, key=tone, is_verdict=True)


def _value_notes(result: FitResult) -> tuple[Block, ...]:
    verdict, larger = result.verdict, result.larger
    notes = [Note(text=f"{result.field}={result.value} {verdict.sentence}.", tone=Tone.MUTED)]
    if larger is not None:
        text = (
            f"With {fraction_line(larger.mem_fraction)}, {result.field}={larger.value} fits:"
            f" {format_bytes(larger.footprint_bytes)}."
        )
        notes.append(Note(text=text, tone=Tone.ACCENT))
    if result.is_of_devices and result.step_reason:
        notes.append(Note(text=f"{result.step_reason[0].upper()}{result.step_reason[1:]}.", tone=Tone.MUTED))
    elif result.step > 1 and not result.is_of_devices:
        text = f"Only multiples of {result.step} were tried: {result.step_reason}."
        notes.append(Note(text=text, tone=Tone.MUTED))
    notes += [Note(text=f"{finding[0].upper()}{finding[1:]}.", tone=Tone.WARNING) for finding in result.findings()]
    notes.append(Note(text=f"Profile it with: {result.command}", tone=Tone.ACCENT))
    return tuple(notes)


def techniques_document(result: TechniquesResult) -> Document:
    """Build the document of a fit over techniques: the answer first, then how to apply it, then its evidence."""
    return Document(
        blocks=(
            Heading(text=_answer(result), level=1, aside=f"{result.subject} {result.settings}".strip()),
            _technique_facts(result),
            *_code_changes(result),
            Heading(
                text="Tried", level=2, aside=f"{result.num_compiled} of {result.num_combinations} combinations compiled"
            ),
            _tried_techniques(result),
            *_technique_notes(result),
        )
    )


def _answer(result: TechniquesResult) -> str:
    if result.answer is None:
        return "no combination of techniques fits"
    return f"{result.answer.label} fits" if result.answer.techniques else "the step fits without techniques"


def _technique_facts(result: TechniquesResult) -> Facts:
    shown = result.answer or result.smallest
    verdict = "fits" if result.answer else "the smallest compiled one"
    return facts_of(
        {
            "target": (result.target,),
            "memory": exact_size(result.memory_bytes),
            "budget": exact_size(result.budget_bytes, _BUDGET),
            shown.name: exact_size(shown.footprint_bytes or 0, verdict),
        }
    )


def _code_changes(result: TechniquesResult) -> tuple[Block, ...]:
    if not result.changes:
        return ()
    notes = (
        block
        for change in result.changes
        for block in (
            Note(text=f"{change.technique}: {change.sentence}", tone=Tone.MUTED),
            *([Note(text=change.code, tone=Tone.ACCENT)] if change.code else []),
        )
    )
    return (Heading(text="Change of code", level=2), *notes)


def _tried_techniques(result: TechniquesResult) -> Table:
    tried = (*result.ranked, *result.others)

    def against_budget(each: TriedTechniques) -> str:
        return "" if each.needed_bytes is None else format_signed_bytes(each.needed_bytes - result.budget_bytes)

    def fits(each: TriedTechniques) -> Cell:
        if each.footprint_bytes is None:
            return Cell(text="failed", key=Tone.BAD, is_verdict=True)
        return _fits_cell(each.fits(result.budget_bytes))

    def seconds(title: str, of: Callable[[TriedTechniques], float | None], priority: int) -> Fields[TriedTechniques]:
        """Make a field of times, if any is known."""
        field: Field[TriedTechniques] = number(
            title, lambda each: "" if (found := of(each)) is None else format_short_seconds(found), priority=priority
        )
        return (field,) if any(of(each) is not None for each in tried) else ()

    def compiled(title: str, of: Callable[[TriedTechniques], str], priority: int) -> Field[TriedTechniques]:
        return number(title, lambda each: "" if each.footprint_bytes is None else of(each), priority=priority)

    return table(
        tried,
        [
            Field(column=Column(title="techniques", min_width=20), cell=lambda each: Cell(text=each.name)),
            compiled("footprint", lambda each: format_bytes(each.footprint_bytes or 0), 0),
            number("against budget", against_budget, priority=2),
            text("fits", fits),
            *seconds("step", lambda each: each.step_seconds, 0),
            *seconds("at least", lambda each: each.at_least_seconds, 1),
            compiled("recomputed", lambda each: format_flops(each.cost.recomputed_flops), 1),
            compiled("on the host", lambda each: format_bytes(each.host_bytes), 1),
            compiled("compile", lambda each: format_seconds(each.seconds), 3),
        ],
    )


def _technique_notes(result: TechniquesResult) -> tuple[Block, ...]:
    muted = [f"{(result.answer or result.smallest).name} {result.verdict.sentence}."] if result.verdict else []
    if result.num_inferred:
        muted.append(
            f"{result.num_inferred} cheaper combinations were not compiled: for each, another one that should hold "
            "less was compiled and does not fit."
        )
    if any(each.at_least_seconds is not None for each in (*result.ranked, *result.others)):
        muted.append("at least: a roofline bound on the time of a step, not measured; the fastest by it comes first.")
    if result.answer is not None and result.num_combinations > 1:
        muted.append("Combinations of equal or higher cost were not compiled either, except those in the table.")
    warnings = [f"{name} failed: {problem}" for name, problem in _failures(result)]
    warnings += [f"{sentence}, so their order was not used." for sentence in result.contradictions]
    if result.answer is not None and result.answer.cost.changes_training:
        warnings.append("The answer has another optimizer, which changes training: no combination fits without one.")
    notes = [Note(text=text, tone=Tone.MUTED) for text in muted]
    notes += [Note(text=text, tone=Tone.WARNING) for text in warnings]
    notes += [
        Note(text=f"{label} was left out: {reason.rstrip('.')}.", tone=Tone.MUTED)
        for label, reason in result.left_out.items()
    ]
    if result.command:
        notes.append(Note(text=f"Profile it with: {result.command}", tone=Tone.ACCENT))
    return tuple(notes)


def _failures(result: TechniquesResult) -> list[tuple[str, str]]:
    return [(each.name, each.problem) for each in result.others if each.problem]


def fit_curve_document(curve: FitCurve) -> Document:
    """Build the document: the budget, a row for each value of the other field, and reasons for values without a fit."""
    found = curve.any_found
    sizes = {"memory": exact_size(found.memory_bytes), "budget": exact_size(found.budget_bytes)}
    return Document(
        blocks=(
            Heading(text=f"the largest {found.field} for each {curve.against}", level=1, aside=_name(found)),
            facts_of({"target": _target(found), **sizes}),
            _curve_table(curve),
            *_curve_notes(curve),
        )
    )


def _curve_table(curve: FitCurve) -> Table:
    number, field = Align.RIGHT, curve.any_found.field
    columns = (
        Column(title=curve.against, align=number),
        Column(title=f"largest {field}", align=number),
        Column(title=f"{field} x {curve.against}", align=number, priority=1),
        Column(title="footprint", align=number),
        Column(title="against budget", align=number, priority=2),
        Column(title="compiles", align=number, priority=3),
    )
    return Table(columns=columns, rows=tuple(_curve_row(point) for point in curve.points))


def _curve_row(point: CurvePoint) -> Row:
    found = point.found
    if found is None:
        return Row(cells=(Cell(text=f"{point.at:,}"), Cell(text="none fits", key=Tone.BAD), *[Cell(text="")] * 4))
    trial = next(trial for trial in found.tried if trial.value == found.value)
    cells = (
        Cell(text=f"{point.at:,}"),
        Cell(text=f"{found.value:,}"),
        Cell(text=f"{found.value * point.at:,}"),
        Cell(text=format_bytes(trial.footprint_bytes)),
        Cell(text=format_signed_bytes(trial.needed_bytes - found.budget_bytes)),
        Cell(text=str(len(found.tried))),
    )
    return Row(cells=cells)


def _curve_notes(curve: FitCurve) -> tuple[Note, ...]:
    found = curve.any_found
    notes = [
        Note(text=f"{curve.against}={point.at}: {point.refusal.rstrip('.')}.", tone=Tone.WARNING)
        for point in curve.points
        if point.found is None
    ]
    if found.step_reason:
        notes.append(Note(text=f"Only multiples of {found.step}: {found.step_reason}.", tone=Tone.MUTED))
    text = f"Each value and the next larger one were compiled. Profile one with: {found.command}"
    return (*notes, Note(text=text, tone=Tone.ACCENT))
