"""What a format is, and what it is asked for.

A format renders a whole report, or a comparison of several. One that shows documents is made with `document_format`:
the view picked by the options makes the document, and the format lowers it. One that serialises facts (json, csv) takes
them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from memprof.analysis.comparison import Comparison
from memprof.analysis.diff import Diff
from memprof.analysis.report import Report
from memprof.reports.choices import By, Order
from memprof.reports.document import Document
from memprof.reports.views.by import by_document
from memprof.reports.views.compare.diff import diff_document
from memprof.reports.views.compare.document import comparison_document
from memprof.reports.views.modules import DEFAULT_DEPTH
from memprof.reports.views.summary import DEFAULT_TOP, summary_document
from memprof.studies.advice.advice import Advice
from memprof.studies.advice.advise import advise

ColorSystem = Literal["standard", "256", "truecolor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What to show, and what it is shown on. A format uses what applies to it: data formats are always whole.

    Attributes:
        by: one breakdown alone; None for the summary.
        depth: levels of the module tree.
        top: rows of the longest lists; the rest is one row, so that totals match.
        order: how the configurations of a comparison follow one another.
        width: columns of the terminal.
        color: the colours that the terminal has; None for none.
        unicode: False where only ASCII arrives.
        source: whether a format that has room for it shows the text around a source line.
        with_advice: whether the summary ends with what could be done about the peak.
        advice: that advice, where more is known of it than the report tells; None: as the report tells it.
    """

    by: By | None = None
    depth: int = DEFAULT_DEPTH
    top: int = DEFAULT_TOP
    order: Order = Order.GIVEN
    width: int = 100
    color: ColorSystem | None = None
    unicode: bool = True
    source: bool = True
    with_advice: bool = False
    advice: tuple[Advice, ...] | None = None

    def advice_for(self, report: Report) -> tuple[Advice, ...]:
        """What could be done about the peak of a report."""
        return advise(report) if self.advice is None else self.advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way to write a report down.

    Attributes:
        name: what `--format` takes.
        suffix: of a file in this format, with its dot.
        summary: one line for `--help` and the docs.
        render_report: the whole output, ending in one newline.
        render_comparison: the same for several reports side by side. Raises `MemprofError` where there is no such view.
        render_diff: the same for what changed from one report to another.
        is_file: whether the output is for a file and another program, and would only be noise on a terminal.
        is_picture: whether it shows the main charts alone, and so not every number.
        lower: any other document in this format; None for a format that shows no documents.
    """

    name: str
    suffix: str
    summary: str
    render_report: Callable[[Report, RenderOptions], str | bytes]
    render_comparison: Callable[[Comparison, RenderOptions], str | bytes]
    render_diff: Callable[[Diff, RenderOptions], str | bytes]
    lower: Callable[[Document, RenderOptions], str | bytes] | None = None
    is_file: bool = False
    is_picture: bool = False


def document_format(
    *,
    name: str,
    suffix: str,
    summary: str,
    lower: Callable[[Document, RenderOptions], str | bytes],
    is_file: bool = False,
    is_picture: bool = False,
) -> Format:
    """A format that lowers documents."""

    def render_report(report: Report, options: RenderOptions) -> str | bytes:
        return lower(report_document(report, options), options)

    def render_comparison(comparison: Comparison, options: RenderOptions) -> str | bytes:
        document = comparison_document(
            comparison, by=options.by, depth=options.depth, top=options.top, order=options.order
        )
        return lower(document, options)

    def render_diff(diff: Diff, options: RenderOptions) -> str | bytes:
        return lower(diff_document(diff, by=options.by, depth=options.depth, top=options.top), options)

    return Format(
        name=name,
        suffix=suffix,
        summary=summary,
        render_report=render_report,
        render_comparison=render_comparison,
        render_diff=render_diff,
        lower=lower,
        is_file=is_file,
        is_picture=is_picture,
    )


def report_document(report: Report, options: RenderOptions) -> Document:
    """The document that the options ask for."""
    if options.by is None:
        advice = options.advice_for(report) if options.with_advice else None
        return summary_document(report, depth=options.depth, top=options.top, advice=advice)
    return by_document(report, by=options.by, depth=options.depth, top=options.top)
