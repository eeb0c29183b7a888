"""`memprof fit --techniques auto`: the cheapest techniques with which a step fits as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memprof.analysis.capture import Capture
from memprof.analysis.fitting.search import NothingFitsError
from memprof.capture.parallel import default_num_jobs
from memprof.capture.targets.resolve import check_can_run
from memprof.profiler_cli.console import say, stages
from memprof.profiler_cli.kept_captures import keep_in
from memprof.profiler_cli.render import Rendering, print_document

if TYPE_CHECKING:
    from memprof.workloads.fit_techniques import TechniquesRequest


def print_cheapest_techniques(
    request: TechniquesRequest, *, num_jobs: int | None, folder: Path | None, timeout: float | None, show: Rendering
) -> None:
    """Find them and print the table of what was tried.

    Raises:
        NothingFitsError: no combination does; what was tried is printed before.
        MemprofError, WorkloadError: see `fit_techniques`.
    """
    from memprof.reports.fit_techniques_json import techniques_object
    from memprof.reports.views.fit_techniques import techniques_document
    from memprof.workloads.fit_techniques import Work, fit_techniques

    request.check()
    if request.num_steps:
        check_can_run(request.memory.target)

    def keep(capture: Capture) -> None:
        if folder is not None:
            keep_in(folder, capture)

    with stages(f"fit {request.subject.label}") as stage:
        work = Work(num_jobs=num_jobs or default_num_jobs(), progress=stage, keep=keep, timeout_seconds=timeout)
        result = fit_techniques(request, work)
    print_document(techniques_document(result), techniques_object(result), show)
    if folder is not None:
        say(f"captures written to {folder}")
    if result.answer is None:
        smallest = result.smallest
        raise NothingFitsError(
            f"nothing fits: the smallest that was compiled, {smallest.name}, takes {smallest.footprint_bytes:,} bytes"
            f" of {result.budget_bytes:,}"
        )
