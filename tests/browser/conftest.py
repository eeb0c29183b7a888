"""A headless Chromium that is offline, and pages in it that must stay silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

OpenPage = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[OpenPage]:
    """Opens HTML as a file, offline. At the end, no page has asked for anything or said anything on the console."""
    contexts: list[Any] = []
    said: list[str] = []
    asked: list[str] = []
    opened: set[str] = set()

    def open_page(html: str | bytes, *, width: int = 1280, color_scheme: str = "light", scripts: bool = True) -> Any:
        assert isinstance(html, str)
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(html)
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=color_scheme,
            offline=True,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: asked.append(request.url))
        opened.add(path.as_uri())
        page.goto(path.as_uri())
        if scripts and page.locator("#flame").count():
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not said
    assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
    assert {url.partition("#")[0] for url in asked if url.startswith("file:")} == opened
