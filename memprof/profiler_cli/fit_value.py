"""`memprof fit`: the largest value of a field with which a step fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.analysis.capture import Capture
from memprof.profiler_cli.console import stages
from memprof.profiler_cli.kept_captures import KeptCaptures
from memprof.profiler_cli.render import Rendering, print_document

if TYPE_CHECKING:
    from memprof.studies.fit.value import FitRequest


def print_largest_value(request: FitRequest, *, kept: KeptCaptures, timeout: float | None, show: Rendering) -> None:
    """Find it and print what was tried.

    Raises:
        NothingFitsError: not even the smallest value does.
        MemprofError, WorkloadError: see `fit`.
    """
    from memprof.reports.json_answers import fit_json
    from memprof.reports.views.fit import fit_document
    from memprof.studies.fit.value import fit

    def keep(capture: Capture, value: int | None) -> None:
        kept.keep(capture, detail="" if value is None else f"{request.field}={value}")

    with stages(f"fit {request.subject.label}") as stage:
        result = fit(request, progress=stage, keep=keep, finished=kept.finished, timeout_seconds=timeout)
    print_document(fit_document(result), fit_json(result), show)
    kept.say_what_is_there()
