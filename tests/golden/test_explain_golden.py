"""The exact explanation of every log of a run that was out of memory, as it was posted."""

from __future__ import annotations

import pytest
from oom_logs import POSTED
from recorded import check_recorded

from memprof.errors import MemprofError
from memprof.reports.formats.json import render_object
from memprof.reports.formats.terminal import FORMAT
from memprof.reports.json.runs import explanation_json
from memprof.reports.options import RenderOptions
from memprof.reports.views.explain import explanation_document, sentences
from memprof.studies.explain.explanation import explain
from memprof.studies.explain.log import read_log

_ASKED = "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 500000000 bytes."


@pytest.mark.parametrize("title", POSTED)
def test_the_explanation_is_as_recorded(title: str) -> None:
    text = POSTED[title].text
    try:
        log = read_log(text)
    except MemprofError:  # a part of a log, without the message
        log = read_log(text + _ASKED)
    found = explain(log, [])
    shown = FORMAT.lower(explanation_document(found, top=3), RenderOptions(width=100))
    recorded = f"{shown}\n{render_object(explanation_json(found, sentences(found)))}"
    name = "".join(letter if letter.isalnum() else "_" for letter in title)
    check_recorded(recorded, f"explain/{name}.txt")
