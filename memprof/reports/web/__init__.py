"""Reports for a browser: documents lowered to HTML, and the page around them.

    Document ──blocks──▶ HTML that reads without any script ─┐
    Report ──report_data──▶ JSON ────────────────────────────┼─ page ──▶ one file
    assets/ (style, scripts) ────────────────────────────────┘

The scripts in `assets/` draw the interactive parts out of the JSON. Names from the user's program reach the page in two
ways only: escaped in the HTML (`page.escaped`), and in the JSON, from which the scripts take them as text, never as
markup. The page forbids itself every request (its content security policy).

The charts are ours: a chart library (plotly) took 1.2 s to start and as long again to draw 20,000 buffers, a page with
all of ours is drawn in 0.5 s (`benchmarks/render_html.py`).
"""
