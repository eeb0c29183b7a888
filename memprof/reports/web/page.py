"""Build an HTML page: body, style, scripts and data in one file that opens anywhere and loads no other resources.

Texts of the user's program must neither become markup nor hide other content: see `escaped` and `script_json`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from memprof.analysis.records.categories import Category
from memprof.reports.document import Tone
from memprof.reports.json.types import Json
from memprof.reports.palette import CATEGORY_COLORS, INK, TONE_COLORS
from memprof.reports.text import printable

_NO_NAME = re.compile(r"[^a-z0-9]+")
_SLOT = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a page.

    Attributes:
        title: the title in the table of contents.
        html: the content, as HTML.
    """

    title: str
    html: str

    @property
    def id(self) -> str:
        return f"{_NO_NAME.sub('-', self.title.lower()).strip('-')}-section"


def page(*, title: str, sections: Sequence[Section], scripts: Sequence[str], data: Json = None) -> str:
    """Build a whole page.

    Args:
        title: the title of the window.
        sections: the sections, from top to bottom.
        scripts: the names of the scripts in `assets/`, in the order in which they run.
        data: the data of the scripts.
    """
    parts = {
        "title": escaped(title),
        "style": f"{palette_css()}\n{asset('page.css')}",
        "contents": "".join(f'<a href="#{each.id}">{escaped(each.title)}</a>\n' for each in sections),
        "body": "\n".join(f'<section id="{each.id}">\n{each.html}\n</section>' for each in sections),
        "data": script_json(data),
        "scripts": "\n".join(asset(name) for name in scripts),
    }
    return _fill(asset("page.html"), parts)


def palette_css(*, scope: str = ":root") -> str:
    """Return the CSS of the colours of categories and tones within a selector; the terminal uses the same colours."""
    categories = (
        f'{scope} [data-category="{category.value}"]{{--c:{CATEGORY_COLORS[category]}}}' for category in Category
    )
    tones = (f"--{tone.value}:{TONE_COLORS[tone]};" for tone in Tone)
    return f"{scope}{{--ink:{INK};{''.join(tones)}}}\n{''.join(categories)}"


@cache
def asset(name: str) -> str:
    """Read a file in `assets/`."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8").rstrip("\n")


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Fill all slots of a template at once, so that slots within a filled part stay as they are."""
    return _SLOT.sub(lambda slot: parts[slot[1]], template) + "\n"


def escaped(text: str) -> str:
    """Escape a text for an element or a quoted attribute; characters outside of ASCII become character references."""
    return html.escape(clean(text)).encode("ascii", "xmlcharrefreplace").decode("ascii")


def clean(text: str) -> str:
    """Replace control characters and bidirectional overrides with visible escapes."""
    return printable(text, ascii_only=False)


def script_json(value: Json) -> str:
    r"""Encode a value as JSON for a `<script>` element, without a `<` that could end it or open a comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
