"""Summarize a model in one table: modules, parameters, FLOPs and activations, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memprof.analysis.records.report import Report
from memprof.api import profile
from memprof.errors import MemprofError
from memprof.reports.formats.html import document_fragment
from memprof.reports.formats.terminal import lower
from memprof.reports.options import RenderOptions
from memprof.reports.views.modules import model_summary_document
from memprof.sources.jax.tracing.step_checks import shown

if TYPE_CHECKING:
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.workloads.user.train_spec import TrainSpec

_DEFAULT_DEPTH = 3


class Summary:
    """The result of `summary`: a table, shown as text or, in a notebook, as HTML.

    Attributes:
        report: all facts about the compiled step, as records; `report.modules` is the module tree.
    """

    def __init__(self, report: Report, depth: int) -> None:
        self.report = report
        self._depth = depth

    def __str__(self) -> str:
        return lower(model_summary_document(self.report, depth=self._depth), RenderOptions())

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return document_fragment(model_summary_document(self.report, depth=self._depth))


def summary(
    fn: Callable[..., Any] | StepSpec | TrainSpec,
    /,
    *args: Any,
    target: str | Path | None = None,
    depth: int = _DEFAULT_DEPTH,
    **kwargs: Any,
) -> Summary:
    """Compile a function, and list its modules with their parameters, FLOPs and activations.

        print(memprof.summary(train_step, state, batch))

    Parameters count for the module that owns them. FLOPs are those of the whole forward pass. Activations are the
    values that are saved for the backward pass and live at the peak; a model without gradients has none. The function
    is not run.

    Args:
        fn: a training step, or a function that applies a model: `lambda params, x: model.apply(params, x)`.
        args, kwargs: the arguments of the function: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        target: as for `memprof.profile`.
        depth: the number of module levels to list, at least 1.

    Raises:
        MemprofError: an argument is invalid; the message is one sentence.
        Exception: any error that the function raises while it is traced.
    """
    if not isinstance(depth, int) or depth < 1:
        raise MemprofError(f"depth is {shown(depth)}, but a number of levels from 1 was expected")
    return Summary(profile(fn, *args, target=target, **kwargs).report, depth)
