"""SVG: the main charts as a picture whose texts are texts, for papers and READMEs."""

from __future__ import annotations

from memprof.reports.charts.figure import draw
from memprof.reports.document import Document
from memprof.reports.format import RenderOptions, document_format


def lower(document: Document, options: RenderOptions) -> str:
    """The document's pictures. Whatever is not ASCII becomes a character reference; the options do not matter."""
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
