r"""Text in GitHub's Markdown: what the user's program says must not become markup, a link or somebody's notification.

    >>> escape_markdown("a|b <script> __init__ @everyone")
    'a\\|b \\<script\\> \\_\\_init\\_\\_ `@`everyone'

GitHub links mentions, issue numbers and addresses after it has rendered the Markdown, so a backslash does not stop it;
code it leaves alone. See the GitHub Flavored Markdown specification, section 6.1 (backslash escapes).
"""

from __future__ import annotations

import re

_LINKING = r"(?P<linking>@(?=\w)|#(?=\d)|:(?=//)|(?<=www)\.)"
_MARKUP = r"(?P<markup>[\\`*\[\]<>|~$&#]|(?<![^\W_])_|_(?![^\W_]))"  # an underscore within a word is only itself
_SPECIAL = re.compile(f"{_LINKING}|{_MARKUP}")
_BACKTICKS = re.compile(r"`+")


def escape_markdown(text: str) -> str:
    """`text` (one line of it, printable) so that GitHub shows it as it is."""
    return _SPECIAL.sub(lambda match: f"`{match[0]}`" if match["linking"] else f"\\{match[0]}", text)


def fenced(lines: list[str]) -> str:
    """Lines as a block of code, whatever they hold."""
    longest = max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])
