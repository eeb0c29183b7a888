"""The paths that flame graphs and trees of the source are drawn of."""

from __future__ import annotations

import pytest
from report_builder import node, report
from reports_data import REPORTS
from stacked_report import stacked

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.reports.views.hierarchies import Hierarchy, Paths, grouped
from memprof.reports.views.sources import source_table, stack_table


def _buffer(op: str) -> LiveBuffer:
    return next(each for each in stacked().buffers if each.op.endswith(op))


def test_a_stack_has_the_users_calls_and_one_line_of_a_library() -> None:
    paths = Paths(stacked())
    calls = ("step (train.py)", "step.loss (train.py)", "Net.__call__ (net.py)", "Attention.__call__ (blocks.py)")
    assert paths.of(_buffer("dot"), Hierarchy.STACK) == (*calls, "blocks.py:69", "dot")
    assert paths.of(_buffer("mul"), Hierarchy.STACK) == (*calls, "blocks.py:70", "flax/linen/stochastic.py:107", "mul")


def test_what_has_no_stack_says_why() -> None:
    paths = Paths(stacked())
    assert paths.of(_buffer("['w']"), Hierarchy.STACK) == ("(arguments of the step)", "params['w']")
    assert paths.of(_buffer(""), Hierarchy.STACK)  # of whatever comes first
    constant = next(each for each in stacked().buffers if each.category is Category.CONSTANTS)
    assert paths.of(constant, Hierarchy.STACK) == ("(no source line)", "(no name)")


def test_equal_layers_are_one_module() -> None:
    buffers = stacked().buffers
    layers = tuple(node(f"layers_{n}", (), children=(node(f"layers_{n}/attention", ()),)) for n in range(4))
    paths = Paths(report(buffers, modules=node("", (), children=layers)))
    assert paths.of(_buffer("dot"), Hierarchy.MODULE) == ("layers_{0..3}", "attention", "dot")
    assert paths.of(_buffer("dot"), Hierarchy.CATEGORY) == ("activations", "layers_{0..3}", "attention", "dot")


def test_a_file_above_the_folder_of_the_sources_is_named_from_there() -> None:
    paths = Paths(report([_buffer("dot")]))
    assert [paths.file_name(file) for file in ("/home/me/project/net/a.py", "/home/me/project/b.py", "c.py")] == [
        "a.py",
        "../b.py",
        "c.py",
    ]


@pytest.mark.parametrize("name", list(REPORTS))
@pytest.mark.parametrize("table", [source_table, stack_table])
def test_every_tree_adds_up_to_the_footprint(name: str, table: type) -> None:
    made = REPORTS[name]()
    rows = table(made, top=3).rows  # type: ignore[attr-defined]
    assert sum(int(row.cells[4].text.replace(",", "")) for row in rows) == made.footprint_bytes


def test_groups_are_what_begins_alike() -> None:
    weighted = [(("a", "b"), 1), (("c",), 5), (("a",), 2), ((), 9)]
    assert grouped(weighted) == [("c", [((), 5)]), ("a", [(("b",), 1), ((), 2)])]
