"""The document of a watched script: its programs, the reasons of recompiles, and the arrays on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memprof.analysis.records.report import Report
from memprof.reports.document import (
    Block,
    Cell,
    Column,
    Document,
    Fact,
    Facts,
    Heading,
    Note,
    Row,
    Shorten,
    Table,
    Tone,
)
from memprof.reports.units import format_bytes
from memprof.reports.views.advice import best_advice_table
from memprof.reports.views.cells import aside_cell, size_cell
from memprof.reports.views.fields import Field, count, number, summed, table, text, total
from memprof.reports.views.header import TONES, pressure_sentence
from memprof.studies.advice.advice import Advice
from memprof.studies.watch.job import Job
from memprof.studies.watch.moments import Growth, LargestMoment, OtherArrays
from memprof.studies.watch.programs import Compiled, JobProgram

_NUM_ADVICE = 3


def job_document(job: Job, *, top: int, report: Report | None = None, advice: Sequence[Advice] = ()) -> Document:
    """Build the document: the programs that a script compiled, and the moment with the most memory in use.

    Args:
        job: the facts.
        top: the number of rows in each table; the rest is summed up in one.
        report: the report of the largest program, for the verdict.
        advice: the advice for the largest program.
    """
    blocks: list[Block] = [Heading(text=job.label, level=1, aside="memprof watch"), _facts(job)]
    if report is not None and report.pressure is not None:
        text = f"{job.programs[0].name}: {pressure_sentence(report.pressure)}."
        blocks.append(Note(text=text, tone=Tone.WARNING))
    if job.programs:
        blocks += [_programs_table(job, top), *_recompiles(job.programs)]
    blocks += [
        Note(text=f"The arguments of {name} could not be followed: {reason}", tone=Tone.WARNING)
        for name, reason in job.not_followed.items()
    ]
    if job.moment is not None:
        blocks += _moment(job.moment, top)
    if job.growth:
        blocks += [Heading(text="Growth without a new compile", level=2), _growth(job.growth, top)]
    if report is not None:
        blocks += _verdict(job.programs[0].name, report, advice)
    return Document(blocks=tuple(blocks))


def _verdict(name: str, report: Report, advice: Sequence[Advice]) -> list[Block]:
    """Say whether a program fits, and show the advice with the largest savings."""
    blocks: list[Block] = []
    if report.verdict.fits is not None:
        blocks.append(Note(text=f"{name} {report.verdict.sentence}", tone=TONES[report.verdict.answer]))
    if advice:
        blocks += [
            Heading(text=f"Advice for {name}", level=2),
            best_advice_table(report, advice, top=_NUM_ADVICE),
        ]
    return blocks


def _facts(job: Job) -> Facts:
    own = [each for program in job.programs for each in program.compiles]
    kinds = ((own, "for the script"), (job.of_jax, "for operations of JAX"))
    counts = tuple(_count(compiles, what) for compiles, what in kinds if compiles)
    facts = [Fact(label="compiled", values=counts or ("no use of JAX",))]
    if job.moment is not None:
        moment = job.moment
        values = [format_bytes(moment.size_bytes), f"{moment.program} {format_bytes(moment.footprint_bytes)}"]
        if moment.others:
            values.append(f"{format_bytes(moment.others_bytes)} of other arrays")
        facts.append(Fact(label="largest moment", values=tuple(values)))
    shared = _shared_state(job.programs)
    facts += [Fact(label="one state", values=(", ".join(names),)) for names in shared]
    return Facts(facts=tuple(facts))


def _count(compiles: Sequence[Compiled], what: str) -> str:
    seconds = sum(each.seen.seconds or 0.0 for each in compiles)
    noun = "program" if len(compiles) == 1 else "programs"
    return f"{len(compiles):,} {noun} {what} ({seconds:.1f} s)"


def _shared_state(programs: Sequence[JobProgram]) -> list[list[str]]:
    """Return the names of programs whose parameters are equal in types and counts."""
    groups: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for program in programs:
        if program.state:
            groups.setdefault(tuple(sorted(program.state.items())), []).append(program.name)
    return [names for names in groups.values() if len(names) > 1]


def _programs_table(job: Job, top: int) -> Table:
    def num_compiles(programs: Sequence[JobProgram]) -> int:
        return sum(len(program.compiles) for program in programs)

    programs = table(
        job.programs,
        [
            text("program", lambda program: program.name, min_width=12),
            text("kind", lambda program: program.kind, priority=1),
            summed("footprint", lambda programs: _size(programs[0].largest.footprint_bytes)),
            summed("live peak", lambda programs: _size(programs[0].largest.live_peak_bytes), priority=2),
            summed("compiled", lambda programs: _times(num_compiles(programs))),
            number("took", lambda program: f"{program.seconds:.1f} s", priority=3),
            Field(
                column=Column(title="place", priority=4, shorten=Shorten.MIDDLE),
                cell=lambda program: aside_cell(program.place),
            ),
        ],
        top=top,
    )
    if not job.of_jax:
        return programs
    largest = max(job.of_jax, key=lambda each: each.footprint_bytes or 0)
    sizes = (_size(largest.footprint_bytes), _size(largest.live_peak_bytes), Cell(text=_times(len(job.of_jax))))
    nothing = Cell(text="")
    of_jax = Row(cells=(aside_cell("JAX's own"), nothing, *sizes, nothing, nothing))
    return replace(programs, rows=(*programs.rows, of_jax))


def _size(size_bytes: int | None) -> Cell:
    return aside_cell("not known") if size_bytes is None else size_cell(size_bytes)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _recompiles(programs: Sequence[JobProgram]) -> list[Block]:
    again = [program for program in programs if program.recompiles]
    if not again:
        return []
    facts = [
        Fact(label=program.name, values=tuple(f"{_times(each.times)}: {each.reason}" for each in program.recompiles))
        for program in again
    ]
    return [Heading(text="Recompiled", level=2), Facts(facts=tuple(facts))]


def _moment(moment: LargestMoment, top: int) -> list[Block]:
    when = f"{moment.seconds:.0f} s after the script began"
    if moment.is_seen:
        text = f"At the first call of {moment.program}, {when}: it needs {format_bytes(moment.footprint_bytes)}"
    else:
        text = (
            f"{moment.program}, which needs most, may have run {when}, beside the existing arrays: it needs"
            f" {format_bytes(moment.footprint_bytes)}"
        )
    text += (
        f", and arrays beside it hold {format_bytes(moment.others_bytes)}."
        if moment.others
        else ", and there are no other arrays."
    )
    if moment.in_use_bytes is not None:
        rest = moment.in_use_bytes - moment.live_bytes
        text += (
            f" The allocator had allocated {format_bytes(moment.in_use_bytes)}, {format_bytes(abs(rest))}"
            f" {'more' if rest >= 0 else 'less'} than the {format_bytes(moment.live_bytes)} of all arrays."
        )
    blocks: list[Block] = [Heading(text="The largest moment", level=2), Note(text=text, tone=Tone.MUTED)]
    return [*blocks, _others_table(moment.others, top)] if moment.others else blocks


def _others_table(others: Sequence[OtherArrays], top: int) -> Table:
    return table(
        others,
        [
            text("array", lambda each: each.type, min_width=12),
            count("count", lambda each: each.count),
            total("size", lambda each: each.size_bytes, size_cell),
            text("what", lambda each: aside_cell(each.what), shorten=Shorten.END, below=True, min_width=8),
        ],
        top=top,
    )


def _growth(growth: Sequence[Growth], top: int) -> Table:
    return table(
        growth[:top],
        [
            text("array", lambda each: each.type, min_width=12),
            number("count", lambda each: f"{each.from_count:,} to {each.to_count:,} in {each.seconds:.0f} s"),
            number("more", lambda each: size_cell(each.grown_bytes)),
            text("what", lambda each: aside_cell(each.what), shorten=Shorten.END, below=True, min_width=8),
        ],
    )
