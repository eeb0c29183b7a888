"""`memprof advise`: what could be done about the peak of a saved capture."""

from __future__ import annotations

from memprof.profiler_cli import options
from memprof.profiler_cli.render import print_document, rendering


def advise(
    capture: options.CaptureFile,
    pool: options.Pool = None,
    format: options.Format = None,  # noqa: A002 - the option's name
    output: options.ReportFile = None,
    force: options.Force = False,
    width: options.Width = None,
    quiet: options.Quiet = False,
) -> None:
    """Say what could be done about the peak: the bytes that each change saves, its cost, and its line of code.

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

    show = rendering(format, output=output, force=force, width=width)
    show.check_shows_documents("advice")
    report = analyze(read_capture(capture), pool=options.chosen_pool(pool))
    advice = find_advice(report)
    print_document(advice_document(report, advice), advice_list_json(report, advice), show)
