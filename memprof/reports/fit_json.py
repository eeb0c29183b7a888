"""A fit as a JSON object, in the schema `memprof.fit/1` (`docs/schema/fit.schema.json`)."""

from __future__ import annotations

from memprof.reports.json_objects import Json
from memprof.studies.fit.results import FitResult

FIT_SCHEMA = "memprof.fit/1"


def fit_object(result: FitResult) -> dict[str, Json]:
    """The JSON object of a fit."""
    return {
        "schema": FIT_SCHEMA,
        "subject": result.subject,
        "techniques": [name for name in result.techniques.split("+") if name],
        "target": result.target,
        "field": result.field,
        "value": result.value,
        "next_value": result.next_value,
        "step": result.step,
        "footprint_bytes": result.footprint_of(result.value),
        "next_footprint_bytes": result.footprint_of(result.next_value),
        "memory_bytes": result.memory_bytes,
        "reserve_bytes": result.reserve_bytes,
        "budget_bytes": result.budget_bytes,
        "num_compiles": len(result.tried),
        "tried": [
            {
                "value": trial.value,
                "footprint_bytes": trial.footprint_bytes,
                "fits": trial.footprint_bytes <= result.budget_bytes,
                "seconds": trial.seconds,
            }
            for trial in result.tried
        ],
        "findings": list(result.findings()),
        "command": result.command,
    }
