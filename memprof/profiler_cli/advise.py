"""`memprof advise`: what could be done about the peak of a saved capture."""

from __future__ import annotations

from memprof.errors import MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import capture_or_latest
from memprof.profiler_cli.render import print_document, rendering


@options.with_groups
def advise(
    capture: options.CaptureFile = None,
    pool: options.Pool = None,
    output: options.ReportFile = None,
    force: options.Force = False,
    *,
    shown: options.ShownOptions,
) -> None:
    """List changes that would lower the peak of a capture.

    Each change has the bytes that it saves, its cost, and its line of code.

    All is inferred from the captured program alone, without JAX; nothing that does not apply is named. To have the
    techniques that memprof can apply compiled, and the true saving beside the predicted one:

        memprof run transformer --target h100-80gb --advise --verify

        memprof advise transformer-gpt2-h100-80gb.memprof
    """
    from memprof.analysis.pipeline import analyze
    from memprof.capture.capture_file import read_capture
    from memprof.reports.json.answers import advice_list_json
    from memprof.reports.views.advice import advice_document
    from memprof.studies.advice.advise import advise as find_advice

    show = rendering(shown.format, output=output, force=force, width=shown.width)
    show.check_shows_documents("advice")
    report = analyze(read_capture(capture_or_latest(capture)), pool=options.chosen_pool(pool))
    if report.framework != "jax":
        raise MemprofError(f"{report.label} is a trace of PyTorch, and advice names changes of JAX code")
    advice = find_advice(report)
    print_document(advice_document(report, advice), advice_list_json(report, advice), show)
