"""PDF: the main charts as vectors with embedded fonts, as LaTeX includes them."""

from __future__ import annotations

from memprof.reports.document import Document
from memprof.reports.format import document_format
from memprof.reports.formats.svg import draw
from memprof.reports.options import RenderOptions


def lower(document: Document, options: RenderOptions) -> bytes:
    """The document's pictures. The options do not matter."""
    del options
    return draw(document, "pdf")


FORMAT = document_format(
    name="pdf",
    suffix=".pdf",
    summary="the main charts as a picture for papers (extra `charts`)",
    lower=lower,
    is_file=True,
    is_picture=True,
)
