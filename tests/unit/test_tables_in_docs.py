"""The tables of the documentation have a row for each member of the table in the code that they describe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memprof.analysis.records.categories import Category, Role
from memprof.reports.format import formats
from memprof.studies.advice.advise import RULES

pytestmark = pytest.mark.with_one_jax

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("how-it-works.md", {*Category, *Role} - {Category.FRAGMENTATION}),  # of no value: the text explains it
        ("formats.md", {each.name for each in formats()}),
        ("advice.md", {rule.__name__ for rule in RULES}),
    ],
)
def test_a_table_has_a_row_for_each(page: str, names: set[str]) -> None:
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    first_cells = " ".join(line.split("|")[1] for line in lines if line.startswith("|"))
    assert names <= set(re.findall(r"`(\w+)`", first_cells))


def test_the_api_lists_all_roles() -> None:
    (line,) = (each for each in (DOCS / "api.md").read_text(encoding="utf-8").splitlines() if "| `roles` |" in each)
    assert {*Role} <= set(re.findall(r"`(\w+)`", line))
