"""Whether techniques took effect, as the compiled program shows it.

A configuration says what was asked for; these functions look for it in the report, which comes from the compiled
program. Each technique names the function that looks for it. Some effects only show against a program without the
technique: that is what the reference is for.

    for verdict in verdicts(report, parse_techniques("bf16+remat"), reference=baseline_report):
        print(verdict.took_effect, verdict.evidence)
"""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.errors import MemprofError
from memprof.workloads.composition import parse_techniques
from memprof.workloads.technique import AppliedTechnique


def verdicts(report: Report, techniques: Sequence[AppliedTechnique], reference: Report | None) -> tuple[Verdict, ...]:
    """Returns a verdict for each technique that has something to look for (the baseline has not).

    Args:
        report: of the program with the techniques.
        techniques: what was asked for.
        reference: of the row to compare with. A technique is only set against it where the two differ in that
            technique and in others that the reference lacks; against any other row a difference would prove nothing.
    """
    found = []
    for applied in techniques:
        look = applied.technique.evidence
        if look is not None:
            contrast = reference if reference is not None and _is_contrast(reference, applied, techniques) else None
            verdict = look(report, applied.argument, contrast)
            found.append(Verdict(took_effect=verdict.took_effect, evidence=f"{applied.label}: {verdict.evidence}"))
    return tuple(found)


def _is_contrast(reference: Report, applied: AppliedTechnique, techniques: Sequence[AppliedTechnique]) -> bool:
    """Whether the reference has only what the row has too, and not this technique."""
    try:
        theirs = parse_techniques("+".join(reference.techniques))
    except MemprofError:
        return False  # a capture of another memprof, which had other techniques
    says_something = {
        other.label for other in theirs if other.technique.evidence and not other.technique.restates_baseline
    }
    return says_something <= {other.label for other in techniques} - {applied.label}
