"""The page: body, style, scripts and data in one file that opens anywhere and loads nothing from elsewhere.

What the user's program says must not become markup, nor hide what stands beside it: see `escaped`, `script_json`.
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
    """A part of a page.

    Attributes:
        title: in the table of contents.
        html: what stands in it.
    """

    title: str
    html: str

    @property
    def id(self) -> str:
        return f"{_NO_NAME.sub('-', self.title.lower()).strip('-')}-section"


def page(*, title: str, sections: Sequence[Section], scripts: Sequence[str], data: Json = None) -> str:
    """A whole page.

    Args:
        title: of the window.
        sections: what it says, from top to bottom.
        scripts: names of the files in `assets/` that it runs, in order.
        data: what the scripts draw from.
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
    """The colours of categories and tones, the same as on the terminal, for what stands in `scope`."""
    categories = (
        f'{scope} [data-category="{category.value}"]{{--c:{CATEGORY_COLORS[category]}}}' for category in Category
    )
    tones = (f"--{tone.value}:{TONE_COLORS[tone]};" for tone in Tone)
    return f"{scope}{{--ink:{INK};{''.join(tones)}}}\n{''.join(categories)}"


@cache
def asset(name: str) -> str:
    """The text of a file in `assets/`."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8").rstrip("\n")


def _fill(template: str, parts: Mapping[str, str]) -> str:
    """Fill all slots at once: what stands in one part is never taken for a slot."""
    return _SLOT.sub(lambda slot: parts[slot[1]], template) + "\n"


def escaped(text: str) -> str:
    """`text` for an element or a quoted attribute; whatever is not ASCII becomes a character reference."""
    return html.escape(clean(text)).encode("ascii", "xmlcharrefreplace").decode("ascii")


def clean(text: str) -> str:
    """`text` with control characters and bidirectional overrides shown as escapes."""
    return printable(text, ascii_only=False)


def script_json(value: Json) -> str:
    r"""A value as JSON that may stand in a `<script>` element: no `<` can end the element or open a comment in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
