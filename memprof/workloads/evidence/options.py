"""Compiler options: nothing in a program says which options it was compiled with, so only a difference can tell."""

from __future__ import annotations

from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence.reading import is_same_program, no, untold, yes
from memprof.workloads.technique import ArgumentValue


def option_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for any difference from the reference."""
    recorded = f"{argument} was passed to XLA and recorded"
    if reference is None:
        return untold(f"{recorded}; only a row without it would tell what it changed")
    if is_same_program(report, reference):
        return no(f"{recorded}, but the program is the reference's: the same buffers at the peak, loops and operations")
    return yes(f"{recorded}, and the program differs from the reference's")
