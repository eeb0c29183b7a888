"""What a reader may choose of a report: light, since the command line offers it before it needs reports."""

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
    """What a page links source lines to; empty for `none`.

    Raises:
        MemprofError: it is no link to a file.
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
    """What the bytes are added up by."""

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
    """How the rows of a comparison follow one another."""

    GIVEN = "given"
    FOOTPRINT = "footprint"
    RECOMPUTED = "recomputed"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What to show, and what it is shown on. A format uses what applies to it: data formats are always whole.

    Attributes:
        by: one breakdown alone; None for the summary.
        depth: levels of the module tree.
        top: rows of the longest lists; the rest is one row, so that totals match.
        order: how the configurations of a comparison follow one another.
        width: columns of the terminal.
        color: the colours that the terminal has; None for none.
        unicode: False where only ASCII arrives.
        source: whether a format that has room for it shows the text around a source line.
        editor: what a page links a source line to, with `{file}` (its path, from the first slash on) and `{line}`;
            empty: to nothing.
        with_advice: whether the summary ends with what could be done about the peak.
        advice: that advice, where more is known than the report alone gives (savings that were compiled); else None.
        first_screen: the verdict and what is behind it on one screen, instead of the summary.
        verdict_first: whether the first screen begins with the verdict, for readers who may see its beginning alone.
        with_configuration: whether the toolchain and the workload's configuration are shown.
        capture: the file that the report comes from, for the commands that it names; empty: it names none.
        advise_command: compiles the advice on the step that the report is of; empty: only the capture is known of it.
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
    first_screen: bool = False
    verdict_first: bool = False
    with_configuration: bool = True
    capture: str = ""
    advise_command: str = ""

    def advice_for(self, report: Report) -> tuple[Advice, ...]:
        """What could be done about the peak of a report."""
        from memprof.studies.advice.advise import advise

        return advise(report) if self.advice is None else self.advice
