"""The characters that lines, bars and marks are drawn with: one set for Unicode, one for plain ASCII."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memprof.reports.document import Tone


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """One set of characters.

    Attributes:
        bar_steps: a cell that is filled from the left, least first; the last is a full one.
        stack_steps: a cell that is filled from below, without the full one; empty where there are none.
        bullets: what stands before a note of each tone.
    """

    ellipsis: str
    separator: str
    rule: str
    tree_branch: str
    tree_last: str
    tree_pipe: str
    bar_steps: str
    stack_steps: str
    band: str
    free: str
    mark_above: str
    mark_below: str
    axis: str
    axis_tick: str
    axis_corner: str
    bullets: Mapping[Tone, str]


UNICODE = Glyphs(
    ellipsis="…",
    separator=" · ",
    rule="─",
    tree_branch="├─ ",
    tree_last="└─ ",
    tree_pipe="│  ",
    bar_steps="▏▎▍▌▋▊▉█",
    stack_steps="▁▂▃▄▅▆▇",
    band="▀",
    free="·",
    mark_above="▼",
    mark_below="▲",
    axis="│",
    axis_tick="┤",
    axis_corner="└",
    bullets={Tone.GOOD: "✓ ", Tone.WARNING: "▲ ", Tone.BAD: "✗ ", Tone.ACCENT: "• ", Tone.MUTED: "• "},
)

ASCII = Glyphs(
    ellipsis="..",
    separator=" | ",
    rule="-",
    tree_branch="|- ",
    tree_last="`- ",
    tree_pipe="|  ",
    bar_steps="#",
    stack_steps="",
    band="=",
    free=".",
    mark_above="v",
    mark_below="^",
    axis="|",
    axis_tick="+",
    axis_corner="+",
    bullets={Tone.GOOD: "* ", Tone.WARNING: "! ", Tone.BAD: "! ", Tone.ACCENT: "* ", Tone.MUTED: "- "},
)
