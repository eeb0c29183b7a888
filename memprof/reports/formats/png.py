"""PNG: the main charts as a picture, for programs that do not show SVG."""

from __future__ import annotations

from memprof.reports.document import Document
from memprof.reports.format import document_format
from memprof.reports.formats.svg import draw
from memprof.reports.options import RenderOptions


def lower(document: Document, options: RenderOptions) -> bytes:
    """Draw the pictures of a document. The options are ignored."""
    del options
    return draw(document, "png")


FORMAT = document_format(
    name="png",
    suffix=".png",
    summary="the main charts as a picture, for slides and chats (extra `charts`)",
    lower=lower,
    is_file=True,
    is_picture=True,
)
