"""Bytes of the temp block that hold nothing at the peak."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.categories import Category
from memprof.analysis.report import ModuleNode, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.residuals import repeated_modules

HOW_TO = "x, _ = jax.lax.scan(lambda x, params: (block(params, x), None), x, stacked_params)"


def _propose(report: Report) -> tuple[Proposal, ...]:
    size_bytes = report.categories[Category.FRAGMENTATION]
    layers = [
        family for family, paths in repeated_modules(report).items() if "/" not in family and _are_equal(report, paths)
    ]
    if not (size_bytes and layers):
        return ()
    return (
        Proposal(
            what="Scan over equal layers: fewer arrays, of equal sizes, pack better",
            evidence=f"{size_bytes:,} bytes of the temp block hold nothing at the peak, which is the most that packing"
            f" can save; {layers[0]} have equal parameters and are not scanned",
            cost="stacked parameters; activations of all layers in one array each, which hold more where the compiler"
            " fuses layers now",
            how_to=HOW_TO,
            without=lambda buffer: None,
            is_packed=True,
            technique="scan",
        ),
    )


def _are_equal(report: Report, paths: tuple[str, ...]) -> bool:
    """Whether modules have parameters of the same shapes, so that these can be stacked."""
    return len({tuple(_shapes(node)) for node in report.modules.children if node.path in paths}) == 1


def _shapes(node: ModuleNode) -> Iterator[tuple[str, tuple[int, ...], str]]:
    yield from node.params
    for child in node.children:
        yield from _shapes(child)


RULE = AdviceRule(name="fragmentation", propose=_propose)
