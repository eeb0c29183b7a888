"""While a step compiles in a notebook: a bar, and the stages with their seconds. It goes when the step is compiled.

    with notebook_bar("train_step") as progress:
        progress("tracing")
        ...

In Jupyter, VS Code and Colab it is an output that is updated, in marimo its own spinner; elsewhere nothing is shown.
Who has imported neither IPython nor marimo gets neither imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

Progress = Callable[[str], None]


@contextmanager
def notebook_bar(what: str) -> Iterator[Progress]:
    """A bar for the time of a block, where it runs in a notebook.

    Args:
        what: is compiled.

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
    else:
        yield lambda stage: None


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
    """What is shown while the last of the stages goes on: each with the moment when it began.

    A `progress` element without a value moves by itself, and has the colours of the notebook, dark or light.
    """
    ends = [began for _, began in stages[1:]]
    said = [f"{stage} {end - began:.1f} s" for (stage, began), end in zip(stages, ends, strict=False)]
    said += [f"{stage} ..." for stage, _ in stages[-1:]]
    text = f"{what}: {', '.join(said)}" if said else what
    bar = f'<progress style="width: 12em; vertical-align: middle" aria-label="{escape(text)}"></progress>'
    return {"text/plain": text, "text/html": f"<div>{bar} {escape(text)}</div>"}
