"""The gauge: what is needed against what there is, in one line."""

from __future__ import annotations

from memprof.reports.document import Gauge, Tone
from memprof.reports.layout.lines import Line, Paper, Span, merge
from memprof.reports.layout.stack import capacity_mark, letter, stack_cells


def gauge_lines(gauge: Gauge, paper: Paper) -> list[Line]:
    """The bar over the page's width, a mark where the capacity ends if the bar goes past it, and the verdict."""
    used = sum(part.size_bytes for part in gauge.parts)
    scale = max(used, gauge.capacity_bytes or 0)
    lines: list[Line] = []
    if scale:
        cells = stack_cells(gauge.parts, bytes_per_cell=scale / paper.width, num_cells=paper.width)
        free = Span(text=paper.glyphs.free * (paper.width - len(cells)), key=Tone.MUTED)
        lines.append(merge([*(letter(category) for category in cells), free]))
    if gauge.capacity_bytes is not None and used > gauge.capacity_bytes:
        lines.append(capacity_mark(gauge.capacity_bytes, scale=scale, num_cells=paper.width, indent=0, paper=paper))
    bullet = paper.glyphs.bullets[gauge.tone]
    for text in paper.wrap(gauge.verdict, paper.width - len(bullet)):
        lines.append((Span(text=bullet + text, key=gauge.tone, bold=gauge.tone is not Tone.MUTED),))
        bullet = " " * len(bullet)
    return lines
