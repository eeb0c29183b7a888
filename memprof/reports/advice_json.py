"""All advice for one report as a JSON object, in the schema `memprof.advice/1` (`docs/schema/advice.schema.json`)."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.report import Report
from memprof.reports.json_objects import Json, advice_object
from memprof.studies.advice.advice import Advice

ADVICE_SCHEMA = "memprof.advice/1"


def advice_list_object(report: Report, advice: Sequence[Advice]) -> dict[str, Json]:
    """The JSON object of `memprof advise`."""
    return {
        "schema": ADVICE_SCHEMA,
        "label": report.label,
        "target": report.target.name,
        "footprint_bytes": report.footprint_bytes,
        "advice": [advice_object(each) for each in advice],
    }
