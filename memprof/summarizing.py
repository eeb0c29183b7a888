"""A model at a glance: modules, parameters, operations and activations, in one call and on shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memprof.analysis.records.report import Report
from memprof.api import profile
from memprof.errors import MemprofError
from memprof.reports.formats.html import document_fragment
from memprof.reports.formats.terminal import lower
from memprof.reports.options import RenderOptions
from memprof.reports.views.model_summary import model_summary_document
from memprof.sources.jax.tracing.step_checks import shown

_DEFAULT_DEPTH = 3


class Summary:
    """What `summary` gives: a table as text, in a notebook one to look at.

    Attributes:
        report: all facts of the compiled step, as records; `report.modules` is the tree.
    """

    def __init__(self, report: Report, depth: int) -> None:
        self.report = report
        self._depth = depth

    def __str__(self) -> str:
        return lower(model_summary_document(self.report, depth=self._depth), RenderOptions())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return document_fragment(model_summary_document(self.report, depth=self._depth))


def summary(
    fn: Callable[..., Any], /, *args: Any, target: str | Path | None = None, depth: int = _DEFAULT_DEPTH, **kwargs: Any
) -> Summary:
    """Compile a function, and list its modules with what they hold and do.

        print(memprof.summary(train_step, state, batch))

    Parameters are counted, and held, by the module that owns them; operations (FLOP) are those of the forward pass, in
    whole; activations are what is kept for the backward pass at the peak, so of a model without gradients there are
    none. Nothing is run.

    Args:
        fn: a training step, or the application of a model: `lambda params, x: model.apply(params, x)`.
        args, kwargs: its arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        target: as for `memprof.profile`.
        depth: levels of modules.

    Raises:
        MemprofError: a mistake in what was asked for, in one sentence.
        Exception: whatever the function raises while it is traced.
    """
    if not isinstance(depth, int) or depth < 1:
        raise MemprofError(f"depth is {shown(depth)}, but a number of levels from 1 was expected")
    return Summary(profile(fn, *args, target=target, **kwargs).report, depth)
