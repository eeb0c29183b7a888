"""A model in one table: its modules, with parameters, FLOPs and activations."""

from __future__ import annotations

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import ModuleNode, Report
from memprof.reports.document import Align, Cell, Column, Document, Fact, Facts, Heading, Row, Shorten, Table
from memprof.reports.units import format_bytes, format_count, format_flops
from memprof.reports.views.cells import aside_cell, size_cell
from memprof.reports.views.layers import fold_equal_siblings
from memprof.reports.views.modules import without_children


def model_summary_document(report: Report, *, depth: int) -> Document:
    """Build a table of the modules down to `depth` levels, in the order of the model; equal layers share a row."""
    root = fold_equal_siblings(report.modules)
    facts = Facts(
        facts=(
            Fact(label="parameters", values=(f"{report.num_params:,}", f"{_params(root)} on {report.target.name}")),
            Fact(label="operations", values=(f"{format_flops(report.flops)} in all",)),
            Fact(label="footprint", values=(format_bytes(report.footprint_bytes),)),
        )
    )
    table = Table(
        columns=(
            Column(title="module", shorten=Shorten.MIDDLE, min_width=18),
            *(
                Column(title=title, align=Align.RIGHT, priority=priority)
                for title, priority in (("parameters", 0), ("bytes", 2), ("forward", 1), ("activations", 1))
            ),
        ),
        rows=(*(_row(child, depth - 1) for child in root.children), _row(without_children(root), 0, "(no module)")),
        total=_row(root, 0, "all"),
    )
    return Document(blocks=(Heading(text=report.label, level=1), facts, table))


def _params(node: ModuleNode) -> str:
    return format_bytes(node.categories.get(Category.PARAMS, 0))


def _row(node: ModuleNode, depth: int, name: str = "") -> Row:
    return Row(
        cells=(
            Cell(text=name or node.name),
            Cell(text=format_count(node.num_params)) if node.num_params else aside_cell("-"),
            size_cell(node.categories.get(Category.PARAMS, 0)),
            Cell(text=format_flops(node.forward_flops)) if node.forward_flops else aside_cell("-"),
            size_cell(node.categories.get(Category.ACTIVATIONS, 0)),
        ),
        children=tuple(_row(child, depth - 1) for child in node.children) if depth > 0 else (),
    )
