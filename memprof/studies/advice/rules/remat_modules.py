"""Activations of repeated modules that could be computed again: a ladder from cheap to costly."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.analysis.report import Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.residuals import (
    forward_flops_within,
    is_within,
    matrices_by_module,
    repeated_modules,
    without_residuals,
)
from memprof.studies.advice.what_if import Without, changed_at_peak, footprint_without

# memprof's own models call their modules so.
_TECHNIQUES = {"mlp": "remat-mlp", "attention": "remat-attn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rung:
    """One family of modules: what forgetting their activations saves, and what computing them again takes."""

    family: str
    paths: tuple[str, ...]
    without: Without
    saving_bytes: int
    flops: int


def _propose(report: Report) -> tuple[Proposal, ...]:
    rungs = []
    matrices = matrices_by_module(report)
    for family, paths in repeated_modules(report).items():
        if sum(len(found) for module, found in matrices.items() if is_within(module, paths[0])) < 2:
            continue  # one layer: what it would be computed again from is as large
        without = without_residuals(report, paths)
        saving_bytes = report.footprint_bytes - footprint_without(report, without)
        flops = forward_flops_within(report.forward_flops, paths)
        rungs.append(_Rung(family=family, paths=paths, without=without, saving_bytes=saving_bytes, flops=flops))
    return tuple(_proposal(report, rung) for rung in _ladder(rungs))


def _ladder(rungs: list[_Rung]) -> list[_Rung]:
    """Those that save as much as whatever is no dearer, the cheapest first.

    Where two save the same, something else makes the peak then. The compiler may move that, so the dearer one stays.
    """
    ladder: list[_Rung] = []
    for rung in sorted(rungs, key=lambda rung: (rung.flops, -rung.saving_bytes)):
        if not ladder or rung.saving_bytes >= ladder[-1].saving_bytes:
            ladder.append(rung)
    return ladder


def _proposal(report: Report, rung: _Rung) -> Proposal:
    kept_bytes = sum(buffer.size_bytes for buffer in changed_at_peak(report, rung.without))
    evidence = f"{kept_bytes:,} bytes of activations in {len(rung.paths)} modules are held at the peak"
    cost = "their forward pass again"
    if rung.flops:
        evidence += f"; {kept_bytes / rung.flops:.2g} bytes for each operation that would make them again"
        cost += f": {rung.flops / report.flops:.0%} more operations"
    return Proposal(
        what=f"Recompute the activations of {rung.family} in the backward pass",
        evidence=evidence,
        cost=cost,
        how_to="block = jax.checkpoint(block)  # in Flax: nn.remat(Block)",
        without=rung.without,
        technique=_TECHNIQUES.get(rung.family.rpartition("/")[2], "remat" if "/" not in rung.family else None),
    )


RULE = AdviceRule(name="remat_modules", propose=_propose)
