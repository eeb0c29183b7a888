"""The first screen: the composition of a step, whether it fits, and the next commands, in about 25 lines.

The verdict and the commands come last, so that a terminal of 24 lines shows them without scrolling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memprof.analysis.records.categories import Phase
from memprof.analysis.records.report import Report
from memprof.files import as_argument
from memprof.reports.document import Block, Document, Fact, Facts, Heading
from memprof.reports.options import RenderOptions
from memprof.reports.units import format_bytes
from memprof.reports.views import header
from memprof.reports.views.advice import advice_blocks, best_advice_table
from memprof.reports.views.buffers import largest_groups_table
from memprof.reports.views.measured import measured_summary
from memprof.reports.views.report import timeline_chart, warnings
from memprof.studies.advice.advice import Advice

_NUM_GROUPS, _NUM_ADVICE = 4, 3


def first_screen_document(report: Report, options: RenderOptions) -> Document:
    """Build the document of the first screen."""
    advice = options.advice_for(report)
    gauge = header.gauge(report)
    verdict, refusal = replace(gauge, parts=()), header.refusal_notes(report)
    head: tuple[Block, ...] = (_heading(report), *refusal)
    if options.verdict_first:
        head = (*refusal, verdict, _heading(report))
    blocks: tuple[Block, ...] = (
        *head,
        *header.pressure_notes(report),
        replace(gauge, verdict="", with_sizes=True),
        *header.time_facts(report),
        *measured_summary(report),
        *_timeline(report),
        *((largest_groups_table(report.buffers, top=_NUM_GROUPS),) if report.buffers else ()),
        *(advice_blocks(report, advice, of_step=options.of_step) if options.with_advice else _best(report, advice)),
        *warnings(report),
    )
    if options.with_configuration:
        blocks += (header.setup_facts(report), *header.configuration(report))
    advises = not options.with_advice and report.framework == "jax"
    following = _next(options.capture, advises=advises, advise_command=options.advise_command)
    return Document(blocks=(*blocks, *(() if options.verdict_first else (verdict,)), following))


def _heading(report: Report) -> Heading:
    heading = header.subject_heading(report)
    is_cached = report.timings.cached_compile_seconds is not None
    return replace(heading, aside=f"{heading.aside}, plan from the cache") if is_cached else heading


def _timeline(report: Report) -> tuple[Block, ...]:
    if not report.live_peak_bytes or not report.timeline.num_positions:
        return ()
    chart = timeline_chart(report.timeline, live_peak_bytes=report.live_peak_bytes)
    phase = report.timeline.phase_at(report.timeline.peak_position)
    where = f" in the {phase.value} phase" if phase is not Phase.NONE else ""
    mark = f"live peak {format_bytes(report.live_peak_bytes)}{where}"
    return (replace(chart, mark=mark, moments=tuple(replace(each, band="") for each in chart.moments), is_small=True),)


def _best(report: Report, advice: Sequence[Advice]) -> tuple[Block, ...]:
    return (best_advice_table(report, advice, top=_NUM_ADVICE),) if advice else ()


def _next(capture: str, *, advises: bool, advise_command: str) -> Facts:
    if not capture:
        more = ("-v", "--format html > report.html", *(("--advise",) if advises else ()))
        return Facts(facts=(Fact(label="more", values=more),))
    name = as_argument(capture)
    commands = (
        f"memprof show {name} -v",
        f"memprof show {name} -o report.html",
        *((advise_command or f"memprof advise {name}",) if advises else ()),
    )
    return Facts(facts=(Fact(label="next", values=commands, are_commands=True),))
