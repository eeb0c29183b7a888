"""Reports: views turn facts into a document, and formats write it.

    Report ──views──▶ Document ──layout──▶ lines ──formats/terminal──▶ text
       └────────────────formats/json───────────────────────────────▶ text

A view (`views/`) decides the content and its order. A document (`document.py`) holds the content without colours or
widths. A format (`formats/`) lowers the document, or serialises the report itself. `format.py` finds the formats by
scanning that folder.

    >>> from memprof.reports.format import format_named
    >>> from memprof.reports.options import RenderOptions
    >>> text = format_named("terminal").render_report(report, RenderOptions(width=80))  # doctest: +SKIP
"""
