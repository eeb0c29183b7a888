"""How everything looks: one letter and one colour for each category, a sign for each tone, and what lines consist of.

They are the same in every format. The hues are those of Okabe and Ito's palette for colour-blind readers (Color
Universal Design, 2008), with a lighter step of the same hue for the category that belongs to the same story (params and
their copies, gradients and cotangents). Lightness separates what hue does not; the letter separates the rest, so colour
is never the only signal.
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

INK = "#1a1a1a"  # letters on a coloured cell
NARROWEST_LETTER = 0.02  # of a bar's width: a smaller part has no room for its letter


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
