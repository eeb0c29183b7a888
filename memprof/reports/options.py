"""The options of a report. This module imports little, because the command line loads it before any report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from memprof.errors import MemprofError

if TYPE_CHECKING:
    from memprof.analysis.records.report import Report
    from memprof.studies.advice.advice import Advice

ColorSystem = Literal["standard", "256", "truecolor"]

DEFAULT_DEPTH = 2
DEFAULT_TOP = 10
DEFAULT_EDITOR = "vscode://file{file}:{line}"


_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_RUN_AS_CODE = frozenset({"javascript", "data", "vbscript"})


def editor_link(text: str | None) -> str | None:
    """Check the link template for source lines on an HTML page.

    Args:
        text: a template such as `vscode://file{file}:{line}`, `none`, or None.

    Returns:
        The template; empty for `none`, and None for None.

    Raises:
        MemprofError: the text is not a link to a file.
    """
    if text is None or text == "none":
        return None if text is None else ""
    scheme = _SCHEME.match(text)
    if scheme is None or scheme[1].lower() in _RUN_AS_CODE or "{file}" not in text:
        raise MemprofError(
            f"{text!r} is no link into an editor: give one such as vscode://file{{file}}:{{line}}, or none"
        )
    return text


class By(StrEnum):
    """The key of a breakdown."""

    CATEGORY = "category"
    MODULE = "module"
    SOURCE = "source"
    STACK = "stack"
    DTYPE = "dtype"
    PHASE = "phase"
    BUFFER = "buffer"
    PADDING = "padding"
    LAYOUT = "layout"


class Order(StrEnum):
    """The order of the rows of a comparison."""

    GIVEN = "given"
    FOOTPRINT = "footprint"
    RECOMPUTED = "recomputed"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """The content of a report, and the properties of its output. A format ignores options that do not apply to it.

    Data formats always contain all facts.

    Attributes:
        by: the key of a single breakdown; None for the summary.
        depth: the number of levels of the module tree.
        top: the largest number of rows in a list; the rest is summed up in one row, so that totals match.
        order: the order of the configurations of a comparison.
        width: the width of the terminal in columns.
        color: the colour system of the terminal; None for no colours.
        unicode: whether the output may contain characters outside of ASCII.
        source: whether to show the text around a source line, in formats that have room for it.
        editor: the link template for source lines on a page, with `{file}` (the path, from its first slash) and
            `{line}`; empty for no links.
        with_advice: whether the summary ends with advice on the peak.
        advice: the advice, if more is known than the report itself provides, such as compiled savings; otherwise None.
        first_screen: whether to show the verdict and its reasons on one screen instead of the summary.
        verdict_first: whether the first screen begins with the verdict, for readers who may see only its beginning.
        with_configuration: whether to show the toolchain and the workload's configuration.
        capture: the file of the report, used in suggested commands; if empty, no commands are suggested.
        of_step: whether memprof had the step and compiled its own changes for the advice.
        advise_command: a command that compiles the advice for the step; empty if only the capture is known.
    """

    by: By | None = None
    depth: int = DEFAULT_DEPTH
    top: int = DEFAULT_TOP
    order: Order = Order.GIVEN
    width: int = 100
    color: ColorSystem | None = None
    unicode: bool = True
    source: bool = True
    editor: str = DEFAULT_EDITOR
    with_advice: bool = False
    advice: tuple[Advice, ...] | None = None
    of_step: bool = False
    first_screen: bool = False
    verdict_first: bool = False
    with_configuration: bool = True
    capture: str = ""
    advise_command: str = ""

    def advice_for(self, report: Report) -> tuple[Advice, ...]:
        """Return the advice on the peak of a report."""
        from memprof.studies.advice.advise import advise

        return advise(report) if self.advice is None else self.advice
