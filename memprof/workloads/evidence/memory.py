"""Where the state lives: in memory that old and new state share, or in the host's."""

from __future__ import annotations

from memprof.analysis.categories import Category, Role
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence.reading import in_words, no, total_bytes, used_arguments, yes
from memprof.workloads.technique import ArgumentValue


def donation_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for results in the memory of all donated arguments."""
    del argument, reference
    donated = donated_device_bytes(report)
    aliased = report.compiler.alias_bytes
    if donated == 0:
        return no("no argument of the program is donated")
    sentence = f"the compiler reports {in_words(aliased)} of results in the memory of arguments"
    if aliased >= donated:
        return yes(f"{sentence}, all of the {in_words(donated)} donated on the device")
    return no(f"{sentence}, but {in_words(donated)} are donated: what differs in shape or dtype cannot be reused")


def no_donation_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for the absence of results in the memory of arguments."""
    del argument, reference
    aliased = report.compiler.alias_bytes
    sentence = f"the compiler reports {in_words(aliased)} of results in the memory of arguments"
    return yes(sentence) if aliased == 0 else no(sentence)


def offloaded_optimizer_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for the optimizer state in host memory, and for its absence among the device's arguments."""
    del argument, reference
    state = total_bytes(used_arguments(report, Role.OPTIMIZER_STATE))
    on_host, on_device = report.program.host_bytes, report.categories[Category.OPTIMIZER_STATE]
    sentence = (
        f"the program holds {in_words(on_host)} in host memory, and {in_words(on_device)} of the {in_words(state)} of"
        " optimizer state on the device"
    )
    return yes(sentence) if on_host >= state > 0 and on_device == 0 else no(sentence)


def donated_device_bytes(report: Report) -> int:
    """Returns the bytes of donated arguments that are in device memory.

    The compiler's total of arguments leaves out those in host memory, which for this purpose are all donated or none.
    """
    used = [leaf for leaf in report.arguments if leaf.parameter_number is not None]
    on_host = max(0, total_bytes(used) - report.compiler.argument_bytes)
    return max(0, total_bytes(leaf for leaf in used if leaf.donated) - on_host)
