"""`memprof fit --techniques auto`: the cheapest techniques with which a step fits as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.capture.launch import default_num_jobs
from memprof.profiler_cli.console import stages
from memprof.profiler_cli.kept_captures import KeptCaptures
from memprof.profiler_cli.render import Rendering, print_document
from memprof.studies.fit.search import NothingFitsError

if TYPE_CHECKING:
    from memprof.studies.fit.techniques import TechniquesRequest


def print_cheapest_techniques(
    request: TechniquesRequest, *, num_jobs: int | None, kept: KeptCaptures, timeout: float | None, show: Rendering
) -> None:
    """Find them and print the table of what was tried.

    Raises:
        NothingFitsError: no combination does; what was tried is printed before.
        MemprofError, WorkloadError: see `fit_techniques`.
    """
    from memprof.reports.json_answers import fit_techniques_json
    from memprof.reports.views.fit import techniques_document
    from memprof.studies.fit.techniques import Work, fit_techniques

    with stages(f"fit {request.subject.label}") as stage:
        work = Work(
            num_jobs=num_jobs or default_num_jobs(),
            progress=stage,
            keep=kept.keep,
            finished=kept.finished,
            timeout_seconds=timeout,
        )
        result = fit_techniques(request, work)
    print_document(techniques_document(result), fit_techniques_json(result), show)
    kept.say_what_is_there()
    if result.answer is None:
        smallest = result.smallest
        raise NothingFitsError(
            f"nothing fits: the smallest that was compiled, {smallest.name}, takes {smallest.footprint_bytes:,} bytes"
            f" of {result.budget_bytes:,}"
        )
