"""Links between the pages of the project lead somewhere, also where a forge shows them: to files that are there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.with_one_jax

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]


def without_code(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of its headings, as forges and mkdocs make them."""
    titles = re.findall(r"^#+ (.*)$", without_code(page), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        if re.match("[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / path)) if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link
