"""Advice on an HTML page: one line for each piece, which expands to its reason, its cost and its code."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.records.report import Report
from memprof.reports.document import Heading
from memprof.reports.units import format_share
from memprof.reports.views.advice import (
    NOTHING_TO_SAVE,
    advice_facts,
    buffers_link,
    caution,
    saving_text,
    unpressed_note,
)
from memprof.reports.web.blocks import block_html
from memprof.reports.web.page import Section, escaped
from memprof.studies.advice.advice import Advice

_NUM_SHOWN = 6


def advice_section(report: Report, advice: Sequence[Advice], *, of_step: bool) -> Section:
    """Build the section with the advice on the peak; see `advice_document`."""
    blocks = [block_html(Heading(text="Advice", level=2, aside="cheapest first; open one for its reason and its code"))]
    if not advice:
        blocks.append(block_html(NOTHING_TO_SAVE))
        return Section(title="Advice", html="\n".join(blocks))
    pieces = [_piece(report, each) for each in advice]
    blocks += [*map(block_html, unpressed_note(report)), *pieces[:_NUM_SHOWN]]
    if pieces[_NUM_SHOWN:]:
        more = "".join(pieces[_NUM_SHOWN:])
        blocks.append(f"<details><summary>{len(pieces) - _NUM_SHOWN} more</summary>{more}</details>")
    blocks.append(block_html(caution(advice, of_step=of_step)))
    return Section(title="Advice", html="\n".join(blocks))


def _piece(report: Report, advice: Advice) -> str:
    proposal = advice.proposal
    share = format_share(advice.saving_bytes, report.unpressed.footprint_bytes)
    link = buffers_link(report, advice)
    of_buffers = f'<p><span data-link="{escaped(link)}">the buffers that it would change</span></p>' if link else ""
    listed = "".join(
        f"<dt>{escaped(label)}</dt><dd>{escaped(text)}</dd>" for label, text in advice_facts(advice).items()
    )
    code = escaped(proposal.code_to_paste.rstrip())
    shown = f'<div class="code"><pre tabindex="0"><code>{code}</code></pre></div>' if code else ""
    return (
        f'<details class="advice"><summary><b>{escaped(saving_text(advice))}</b>'
        f'<span class="quiet">{escaped(share)}</span><span class="what">{escaped(proposal.what)}</span>'
        f"<code>{escaped(proposal.technique or '')}</code></summary>"
        f'<div><dl class="facts">{listed}</dl>{shown}'
        f"{of_buffers}</div></details>"
    )
