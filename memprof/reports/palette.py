"""The look of reports: a letter and a colour for each category, a sign for each tone, and the characters of lines.

All formats share them. The hues come from Okabe and Ito's palette for colour-blind readers (Color Universal Design,
2008). Related categories (params and their copies, gradients and cotangents) share a hue and differ in lightness. The
letter distinguishes all categories, so colour is never the only signal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from memprof.analysis.records.categories import Category
from memprof.reports.document import Tone

CATEGORY_LETTERS: Mapping[Category, str] = MappingProxyType({each: each.letter for each in Category})
CATEGORY_COLORS: Mapping[Category, str] = MappingProxyType({each: each.color for each in Category})

TONE_COLORS: Mapping[Tone, str] = MappingProxyType(
    {
        Tone.GOOD: "#1fa67c",
        Tone.WARNING: "#e69f00",
        Tone.BAD: "#e0643a",
        Tone.MUTED: "#8a8a8a",
        Tone.ACCENT: "#3d96e0",
    }
)

INK = "#1a1a1a"  # the colour of letters on a coloured cell
NARROWEST_LETTER = 0.02  # share of a bar's width; a smaller part has no room for its letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters of one character set, Unicode or ASCII.

    Attributes:
        bar_steps: a cell filled from the left, in ascending steps; the last is a full cell.
        stack_steps: a cell filled from below, in ascending steps without the full cell; empty if the set has none.
        bullets: the prefix of notes and verdicts, by tone.
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
