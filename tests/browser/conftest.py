"""A headless Chromium that is offline, and pages in it that must stay silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

OpenPage = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tab:
    """A page of Chromium's, what it has said on the console and what it has asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(f"a dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture(scope="session")
def tab(browser: Any) -> Callable[[bool], Tab]:
    """The tab with scripts or without, for all tests one after the other: a new one takes longer than most of them."""
    return cache(lambda scripts: Tab(browser.new_context(offline=True, java_script_enabled=scripts).new_page()))


@pytest.fixture
def open_page(tab: Callable[[bool], Tab], tmp_path: Path) -> Iterator[OpenPage]:
    """Opens HTML as a file, offline, in place of what was open before.

    At the end, no page has asked for anything or said anything on the console.
    """
    opened: list[str] = []
    used: set[Tab] = set()

    def open_page(html: str | bytes, *, width: int = 1280, color_scheme: str = "light", scripts: bool = True) -> Any:
        assert isinstance(html, str)
        path = tmp_path / f"page{len(opened)}.html"
        path.write_text(html)
        opened.append(path.as_uri())
        taken = tab(scripts)
        used.add(taken)
        page = taken.page
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media="screen", color_scheme=color_scheme)
        page.mouse.move(0, 0)
        page.goto(path.as_uri())
        if scripts and page.locator("#flame").count():
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    for one in used:
        one.page.title()  # which it answers after it has said all
    said = [text for one in used for text in one.said]
    asked = [url for one in used for url in one.asked]
    for one in used:
        one.said.clear()
        one.asked.clear()
    assert not said
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
    assert {url.partition("#")[0] for url in asked if url.startswith("file:")} == set(opened)
