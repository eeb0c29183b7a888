"""SVG: the main charts as a picture with selectable text, for papers and READMEs; `pdf` and `png` draw the same.

The pictures of a document (gauge, bars, timeline) are drawn one below the other, in the colours that all formats share.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from memprof.analysis.records.categories import Category
from memprof.errors import MemprofError
from memprof.reports.document import (
    Block,
    Document,
    Facts,
    Gauge,
    Heading,
    Part,
    StackedBars,
    StackedChart,
    Tone,
    categories_of,
)
from memprof.reports.format import document_format
from memprof.reports.options import RenderOptions
from memprof.reports.palette import CATEGORY_COLORS, CATEGORY_LETTERS, INK, NARROWEST_LETTER, TONE_COLORS
from memprof.reports.text import printable, shorten_middle
from memprof.reports.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH_INCHES = 9.0
_DOTS_PER_INCH = 160
_LONGEST_LABEL = 60
_LEGEND_COLUMNS = 3
_GAUGE_INCHES, _BAR_INCHES, _CHART_INCHES, _TICKS_INCHES = 0.6, 0.34, 3.4, 0.3
_DATED = {"pdf": "CreationDate", "png": "Software", "svg": "Date"}
_STYLE = {
    "pdf.fonttype": 42,  # journals reject Type 3 fonts
    "svg.fonttype": "none",
    "svg.hashsalt": "memprof",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
Picture = Gauge | StackedBars | StackedChart


def draw(document: Document, file_type: Literal["pdf", "png", "svg"]) -> bytes:
    """Draw the pictures of a document under its title. Equal documents give equal bytes.

    Returns:
        The content of a file of the given type.

    Raises:
        MemprofError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MemprofError(
            f"Drawing {file_type} needs matplotlib, which is not installed: `pip install matplotlib`, or install "
            "memprof with its extra `charts`."
        ) from error
    pictures = [block for block in document.blocks if isinstance(block, Gauge | StackedBars | StackedChart)]
    data = io.BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the viewer of an SVG may have the font
        figure = Figure(figsize=(_WIDTH_INCHES, 0.6 + sum(map(_height, pictures))), layout="constrained")
        _title(figure, document.blocks)
        heights = [_height(picture) for picture in pictures] or [1.0]
        every_axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, picture in zip(every_axes, pictures, strict=False):
            _draw(axes, picture)
        for axes in every_axes[len(pictures) :]:
            axes.set_axis_off()
        metadata = {_DATED[file_type]: None}  # otherwise equal documents would give different bytes
        figure.savefig(data, format=file_type, dpi=_DOTS_PER_INCH, metadata=metadata)
    return data.getvalue()


def _title(figure: Figure, blocks: Sequence[Block]) -> None:
    """Draw the title with the target, so that the picture is complete when it is passed on."""
    heading = next(block for block in blocks if isinstance(block, Heading))
    targets = [
        fact.values[0] for block in blocks if isinstance(block, Facts) for fact in block.facts if fact.label == "target"
    ]
    text = f"{_label(heading.text)} on {_label(targets[0])}" if targets else _label(heading.text)
    figure.suptitle(text, x=0.01, ha="left", fontweight="bold").set_parse_math(False)


def _height(picture: Picture) -> float:
    match picture:
        case Gauge():
            return _GAUGE_INCHES + _legend_height([picture.parts])
        case StackedBars():
            return _BAR_INCHES * max(len(picture.bars), 2) + _legend_height(bar.parts for bar in picture.bars)
        case StackedChart():
            return _CHART_INCHES


def _legend_height(stacks: Iterable[Sequence[Part]]) -> float:
    num_lines = -(-len(categories_of(stacks)) // _LEGEND_COLUMNS)
    return 2 * _TICKS_INCHES + 0.2 * num_lines


def _draw(axes: Axes, picture: Picture) -> None:
    match picture:
        case Gauge():
            _gauge(axes, picture)
        case StackedBars():
            _bars(axes, picture)
        case StackedChart():
            _chart(axes, picture)


def _gauge(axes: Axes, gauge: Gauge) -> None:
    scale = max(gauge.scale_bytes, 1)
    _stack(axes, 0, gauge.parts, scale)
    _capacity(axes, gauge.capacity_bytes)
    axes.set_xlim(0, scale)
    axes.set_yticks([])
    axes.set_title(printable(gauge.verdict, ascii_only=False), loc="left", fontsize=10).set_parse_math(False)
    _byte_ticks(axes.set_xticks, scale)
    sizes = {part.category: part.size_bytes for part in gauge.parts}
    _legend(axes, _GAUGE_INCHES, [gauge.parts], lambda category: f"{category.value}  {format_bytes(sizes[category])}")


def _bars(axes: Axes, bars: StackedBars) -> None:
    scale = bars.scale_bytes
    for row, bar in enumerate(bars.bars):
        _stack(axes, row, bar.parts, scale)
        axes.text(bar.total_bytes + scale * 0.01, row, bar.size, va="center", fontsize=9).set_parse_math(False)
    _capacity(axes, bars.shown_capacity_bytes)
    axes.set_xlim(0, scale * 1.22)
    axes.set_yticks(range(len(bars.bars)), [_label(bar.label) for bar in bars.bars])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.invert_yaxis()
    _byte_ticks(axes.set_xticks, scale)
    _legend(axes, _BAR_INCHES * len(bars.bars), [bar.parts for bar in bars.bars], lambda category: category.value)


def _chart(axes: Axes, chart: StackedChart) -> None:
    order = list(dict.fromkeys(part.category for moment in chart.moments for part in moment.parts))
    sizes = [{part.category: part.size_bytes for part in moment.parts} for moment in chart.moments]
    shares = [index / len(chart.moments) for index in range(len(chart.moments) + 1)]
    heights = [[at.get(category, 0) for at in [*sizes, sizes[-1]]] for category in order]
    axes.stackplot(shares, heights, colors=[CATEGORY_COLORS[category] for category in order], step="post", linewidth=0)
    top = max(chart.moments, key=lambda moment: moment.total_bytes)
    axes.set_title(_label(chart.mark), loc="left", fontsize=10).set_parse_math(False)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, max(top.total_bytes, 1) * 1.05)
    axes.set_xticks([])
    axes.set_xlabel("program order")
    _byte_ticks(axes.set_yticks, top.total_bytes)


def _stack(axes: Axes, row: int, parts: Sequence[Part], scale: int) -> None:
    start = 0
    for part in parts:
        color = CATEGORY_COLORS[part.category]
        axes.barh(row, part.size_bytes, left=start, height=0.78, color=color, edgecolor="#555555", linewidth=0.4)
        if part.size_bytes >= NARROWEST_LETTER * scale:
            middle = start + part.size_bytes / 2
            axes.text(middle, row, CATEGORY_LETTERS[part.category], ha="center", va="center", color=INK, fontsize=9)
        start += part.size_bytes


def _capacity(axes: Axes, capacity_bytes: int | None) -> None:
    if capacity_bytes is not None:
        axes.axvline(capacity_bytes, color=TONE_COLORS[Tone.BAD], linewidth=2, linestyle="--")


def _legend(axes: Axes, axes_inches: float, stacks: Sequence[Sequence[Part]], text: Callable[[Category], str]) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(
            facecolor=CATEGORY_COLORS[category],
            edgecolor="#555555",
            linewidth=0.4,
            label=f"{CATEGORY_LETTERS[category]}  {text(category)}",
        )
        for category in categories_of(stacks)
    ]
    if handles:
        below = (0, -_TICKS_INCHES / axes_inches)
        axes.legend(
            handles=handles, ncols=_LEGEND_COLUMNS, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=below
        )


def _byte_ticks(set_ticks: Callable[..., object], scale: int) -> None:
    """Set four to seven ticks at round binary sizes."""
    step = 1 << max((max(scale, 1) // 3).bit_length() - 1, 0)
    values = range(0, scale + 1, step)
    set_ticks(list(values), [format_bytes(value) for value in values], fontsize=9)


def _label(text: str) -> str:
    return shorten_middle(printable(text, ascii_only=False), _LONGEST_LABEL)


def lower(document: Document, options: RenderOptions) -> str:
    """Draw the pictures of a document. Characters outside of ASCII become character references; options are ignored."""
    del options
    text = draw(document, "svg").decode("utf-8").encode("ascii", "xmlcharrefreplace").decode("ascii")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


FORMAT = document_format(
    name="svg",
    suffix=".svg",
    summary="the main charts as a picture of any size, for papers and READMEs (extra `charts`)",
    lower=lower,
    is_picture=True,
)
