"""Advice without code: a sentence in its place, and nothing that looks like code."""

from __future__ import annotations

from unit.studies.test_advice import CASES

from memprof.reports.document import Code, Facts
from memprof.reports.json.report import advice_json
from memprof.reports.views.advice import advice_blocks
from memprof.reports.web.advice import advice_section
from memprof.studies.advice.advise import advise

_WORDS = (
    "Split the last hidden states and the labels into 8 chunks of tokens and add up the loss of one chunk at a time, "
    "using jax.lax.map with jax.checkpoint around the head and the loss."
)


def test_advice_without_code_shows_a_sentence() -> None:
    speaks, _ = CASES["chunked_loss"]
    report = speaks()
    (advice,) = advise(report)
    blocks = advice_blocks(report, [advice])
    facts = {fact.label: fact.values for block in blocks if isinstance(block, Facts) for fact in block.facts}
    assert facts["how"] == (_WORDS,)
    assert not [block for block in blocks if isinstance(block, Code)]
    page = advice_section(report, [advice], of_step=False).html
    assert f"<dt>how</dt><dd>{_WORDS}</dd>" in page
    assert 'class="code"' not in page
    as_json = advice_json(advice)
    assert (as_json.code, as_json.how_to) == ("", _WORDS)
