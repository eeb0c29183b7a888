"""Pruning: masks among the arguments, or fewer parameters."""

from __future__ import annotations

from memprof.analysis.categories import Role
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence.reading import in_words, no, total_bytes, untold, used_arguments, yes
from memprof.workloads.technique import ArgumentValue


def masks_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for a mask for each weight matrix among the arguments."""
    del argument, reference
    masks = [leaf for leaf in used_arguments(report, Role.OTHER_STATE) if leaf.dtype == "bool"]
    shapes = sorted(leaf.shape for leaf in masks)
    kernels = sorted(leaf.shape for leaf in used_arguments(report, Role.PARAMS) if leaf.path.endswith("['kernel']"))
    if not masks or shapes != kernels:
        return no(f"the program takes {len(masks)} masks for {len(kernels)} weight matrices")
    return yes(f"the program takes a mask for each of {len(kernels)} weight matrices: {in_words(total_bytes(masks))}")


def fewer_params_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for fewer parameters than in the reference, in arrays of the same names."""
    del argument
    if reference is None:
        return untold(
            f"the program takes {report.num_params} parameters; only a row without pruning would tell how many went"
        )
    sentence = f"the program takes {report.num_params} parameters, the reference {reference.num_params}"
    return yes(sentence) if report.num_params < reference.num_params else no(sentence)
