"""PDF: the main charts as vector graphics with embedded fonts, for LaTeX."""

from __future__ import annotations

from memprof.reports.document import Document
from memprof.reports.format import document_format
from memprof.reports.formats.svg import draw
from memprof.reports.options import RenderOptions


def lower(document: Document, options: RenderOptions) -> bytes:
    """Draw the pictures of a document. The options are ignored."""
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
