"""A fit over techniques as a JSON object: `memprof.fit_techniques/1` (`docs/schema/fit_techniques.schema.json`)."""

from __future__ import annotations

from memprof.reports.json_objects import Json
from memprof.studies.fit.results import TechniquesResult, TriedTechniques

FIT_TECHNIQUES_SCHEMA = "memprof.fit_techniques/1"


def techniques_object(result: TechniquesResult) -> dict[str, Json]:
    """The JSON object of a fit over techniques."""
    answer = result.answer
    return {
        "schema": FIT_TECHNIQUES_SCHEMA,
        "subject": result.subject,
        "settings": result.settings,
        "target": result.target,
        "memory_bytes": result.memory_bytes,
        "reserve_bytes": result.reserve_bytes,
        "budget_bytes": result.budget_bytes,
        "answer": None if answer is None else _names(answer),
        "footprint_bytes": None if answer is None else answer.footprint_bytes,
        "command": result.command or None,
        "changes": [
            {"technique": change.technique, "sentence": change.sentence, "code": change.code}
            for change in result.changes
        ],
        "num_combinations": result.num_combinations,
        "num_compiles": result.num_compiled,
        "num_inferred": result.num_inferred,
        "tried": [
            {
                "techniques": _names(each),
                "footprint_bytes": each.footprint_bytes,
                "fits": each.footprint_bytes is not None and each.footprint_bytes <= result.budget_bytes,
                "changes_training": each.cost.changes_training,
                "recomputed_flops": each.cost.recomputed_flops,
                "host_bytes": each.host_bytes,
                "step_seconds": each.step_seconds,
                "seconds": each.seconds,
                "problem": each.problem or None,
            }
            for each in (*result.ranked, *result.others)
        ],
        "left_out": dict(result.left_out),
        "contradictions": list(result.contradictions),
    }


def _names(tried: TriedTechniques) -> list[Json]:
    return [name for name in tried.techniques.split("+") if name]
