"""A check as a JSON object, in the schema `memprof.check/1` (`docs/schema/check.schema.json`)."""

from __future__ import annotations

from memprof.reports.json_objects import Json
from memprof.studies.check.check import CheckResult

CHECK_SCHEMA = "memprof.check/1"


def check_object(result: CheckResult) -> dict[str, Json]:
    """The JSON object of a check."""
    return {
        "schema": CHECK_SCHEMA,
        "label": result.label,
        "passed": result.passed,
        "footprint_bytes": result.footprint_bytes,
        "items": [{"passed": item.passed, "sentence": item.sentence} for item in result.items],
        "differences": list(result.differences),
        "changes": [
            {
                "what": change.what,
                "name": change.name,
                "before_bytes": change.before_bytes,
                "after_bytes": change.after_bytes,
            }
            for change in result.changes
        ],
    }
