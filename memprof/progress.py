"""Show the progress of a compile that was started from Python: its current stage.

    with stages_shown("train_step") as progress:
        progress("tracing")
        ...

Jupyter, VS Code and Colab show a progress bar with the seconds of each stage; marimo shows its own spinner. Elsewhere
the stages go to stderr: on a terminal as one line that disappears after the compile, in a log as a line for each stage.
This module imports neither IPython nor marimo.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from typing import Any

Progress = Callable[[str], None]
_NEW_LINE = "\r\x1b[2K"  # erases the current line and returns to its beginning


@contextmanager
def stages_shown(what: str) -> Iterator[Progress]:
    """Show the stages of a block.

    Args:
        what: the name of the compiled step.

    Yields:
        A function to call with the name of each stage as it begins.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    marimo = sys.modules.get("marimo")
    if getattr(shell, "kernel", None) is not None:
        with _display(what) as progress:
            yield progress
    elif marimo is not None and marimo.running_in_notebook():
        with marimo.status.spinner(title=what, remove_on_exit=True) as spinner:
            yield lambda stage: spinner.update(subtitle=stage)
    elif _is_on_terminal():
        try:
            yield lambda stage: _write(f"{_NEW_LINE}{what}: {stage} ...")
        finally:
            _write(_NEW_LINE)
    else:
        yield on_change(lambda stage: _write(f"{what}: {stage} ...\n"))


def on_change(show: Progress) -> Progress:
    """Return a function that shows a stage if it differs from the last one: a compile that waits repeats its stage."""
    last = ""

    def show_change(stage: str) -> None:
        nonlocal last
        if stage != last:
            last = stage
            show(stage)

    return show_change


@contextmanager
def rows_shown(progress: Progress) -> Iterator[Callable[[str, str], None]]:
    """Show the stages of several compiles as the stages of one block.

    Args:
        progress: the function that `stages_shown` yields.

    Yields:
        A function to call with the label of a compile and the name of each of its stages.
    """
    yield lambda label, stage: progress(f"{label}, {stage}")


def _is_on_terminal() -> bool:
    with suppress(ValueError, AttributeError):  # stderr is closed or None
        return sys.stderr.isatty()
    return False


def _write(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed or None, or its reader has gone away
        sys.stderr.write(text)
        sys.stderr.flush()


@contextmanager
def _display(what: str) -> Iterator[Progress]:
    from IPython.display import display

    stages: list[tuple[str, float]] = []
    shown: Any = display(_bundle(what, stages), raw=True, display_id=True)

    def progress(stage: str) -> None:
        stages.append((stage, time.monotonic()))
        shown.update(_bundle(what, stages), raw=True)

    try:
        yield progress
    finally:
        shown.update({"text/plain": "", "text/html": ""}, raw=True)


def _bundle(what: str, stages: list[tuple[str, float]]) -> dict[str, str]:
    """Return the text and the HTML to show while the last stage runs.

    A `progress` element without a value is animated by the browser, in the colours of the notebook, dark or light.

    Args:
        what: the name of the compiled step.
        stages: each stage with its start time in seconds.
    """
    ends = [began for _, began in stages[1:]]
    said = [f"{stage} {end - began:.1f} s" for (stage, began), end in zip(stages, ends, strict=False)]
    said += [f"{stage} ..." for stage, _ in stages[-1:]]
    text = f"{what}: {', '.join(said)}" if said else what
    bar = f'<progress style="width: 12em; vertical-align: middle" aria-label="{escape(text)}"></progress>'
    return {"text/plain": text, "text/html": f"<div>{bar} {escape(text)}</div>"}
