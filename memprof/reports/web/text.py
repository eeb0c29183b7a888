"""Text in a page: what the user's program says must not become markup, nor hide what stands beside it."""

from __future__ import annotations

import html
import json

from memprof.reports.json_objects import Json
from memprof.reports.text import printable


def escaped(text: str) -> str:
    """`text` for an element or a quoted attribute; whatever is not ASCII becomes a character reference."""
    return html.escape(clean(text)).encode("ascii", "xmlcharrefreplace").decode("ascii")


def clean(text: str) -> str:
    """`text` with control characters and bidirectional overrides shown as escapes."""
    return printable(text, ascii_only=False)


def script_json(value: Json) -> str:
    r"""A value as JSON that may stand in a `<script>` element: no `<` can end the element or open a comment in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
