"""Shell completion: the names that begin with what is typed. Imports no jax."""

from __future__ import annotations

from collections.abc import Iterable


def complete_workloads(incomplete: str) -> list[str]:
    from memprof.workloads.registry import workloads

    return _beginning(incomplete, (workload.name for workload in workloads()))


def complete_techniques(incomplete: str) -> list[str]:
    """Complete the last of several techniques joined with `+`."""
    from memprof.workloads.registry import technique_names

    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in _beginning(last, technique_names())]


def complete_targets(incomplete: str) -> list[str]:
    from memprof.capture.targets.gpu import gpus

    return _beginning(incomplete, [*gpus(), "local", "cpu"])


def complete_formats(incomplete: str) -> list[str]:
    from memprof.reports.format import formats

    return _beginning(incomplete, (each.name for each in formats()))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
