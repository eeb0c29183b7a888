"""Reports: facts in, a document out, one format per file.

    Report ──views──▶ Document ──layout──▶ lines ──formats/terminal──▶ text
       └────────────────formats/json───────────────────────────────▶ text

A view (`views/`) decides what is said and in which order. A document (`document.py`) says it without colours or widths.
A format (`formats/`) lowers it, or serialises the report itself; `format.py` finds them by scanning that folder.

    >>> from memprof.reports.format import format_named
    >>> from memprof.reports.options import RenderOptions
    >>> text = format_named("terminal").render_report(report, RenderOptions(width=80))  # doctest: +SKIP
"""
