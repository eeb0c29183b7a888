"""The stacked chart as a small SVG: an area for each category. A script may put an interactive one in its place."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.categories import Category
from memprof.reports.document import Moment, StackedChart

_WIDTH, _HEIGHT = 960, 240


def chart_svg(chart: StackedChart) -> str:
    """The areas, stacked in the order of each moment's parts; whoever looks closer reads the numbers beside it."""
    top_bytes = max(moment.total_bytes for moment in chart.moments)
    edges = _edges(chart.moments)
    paths = (
        f'<path data-category="{category.value}" d="{_area(lower, upper, top_bytes)}"/>'
        for category, (lower, upper) in edges.items()
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="live bytes over '
        f'program order, stacked by category">{"".join(paths)}</svg>'
    )


def _edges(moments: Sequence[Moment]) -> dict[Category, tuple[list[int], list[int]]]:
    """Where each category's area begins and ends, in bytes above the ground, at each moment."""
    order = dict.fromkeys(part.category for moment in moments for part in moment.parts)
    edges: dict[Category, tuple[list[int], list[int]]] = {category: ([], []) for category in order}
    for moment in moments:
        sizes = {part.category: part.size_bytes for part in moment.parts}
        ground = 0
        for category, (lower, upper) in edges.items():
            lower.append(ground)
            ground += sizes.get(category, 0)
            upper.append(ground)
    return edges


def _area(lower: Sequence[int], upper: Sequence[int], top_bytes: int) -> str:
    """There along the upper edge and back along the lower one, in steps."""
    width = _WIDTH / len(upper)
    there = _steps(
        [_HEIGHT * (1 - size / top_bytes) for size in upper], [index * width for index in range(len(upper))], width
    )
    back = _steps(
        [_HEIGHT * (1 - size / top_bytes) for size in reversed(lower)],
        [index * width for index in reversed(range(1, len(lower) + 1))],
        -width,
    )
    return f"M{there}L{back}Z"


def _steps(heights: Sequence[float], starts: Sequence[float], width: float) -> str:
    """A level for each height, one after the other; equal neighbours are one level."""
    points: list[str] = []
    for index, (height, start) in enumerate(zip(heights, starts, strict=True)):
        if index and height == heights[index - 1]:
            points.pop()
        else:
            points.append(f"{start:.1f},{height:.1f}")
        points.append(f"{start + width:.1f},{height:.1f}")
    return "L".join(points)
