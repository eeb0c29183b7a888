"""Fused attention: the kernel is there, and the probabilities are not."""

from __future__ import annotations

from memprof.analysis.categories import Phase, Role
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence.reading import no, used_arguments, yes
from memprof.workloads.technique import ArgumentValue

# The names of JAX's two primitives around cuDNN's kernel.
_KERNELS = ("dot_product_attention_fwd", "dot_product_attention_bwd")


def flash_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for the kernel's names, and for the absence of values that are as long as they are wide at the peak."""
    del argument, reference
    scopes = {part for operations in report.program.operations for part in operations.scope.split("/")}
    if not all(any(kernel in part for part in scopes) for kernel in _KERNELS):
        return no("the program calls no fused attention")
    lengths = {leaf.shape[1] for leaf in used_arguments(report, Role.BATCH) if len(leaf.shape) > 1}
    square = [
        buffer
        for buffer in report.buffers
        if buffer.phase is not Phase.ARGUMENT and len(buffer.shape) == 4 and set(buffer.shape[-2:]) <= lengths
    ]
    if square:
        return no(f"the program calls fused attention, but {square[0].name} still holds a number for each pair of tokens")
    return yes("the program calls fused attention, and no value at the peak holds a number for each pair of tokens")
