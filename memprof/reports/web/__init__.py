"""Reports for a browser: documents lowered to HTML, and the page around them.

    Document ──blocks──▶ HTML, readable without scripts ─────┐
    Report ──report_data──▶ JSON ────────────────────────────┼─ page ──▶ one file
    assets/ (style, scripts) ────────────────────────────────┘

The scripts in `assets/` draw the interactive parts from the JSON. Names from the user's program reach the page in only
two ways: escaped in the HTML (`page.escaped`), and in the JSON, which the scripts insert as text, never as markup. The
content security policy of the page blocks all requests.

The charts use no library: plotly took 1.2 s to start and another 1.2 s to draw 20,000 buffers, while the browser draws
a whole page of our charts in 0.5 s (`benchmarks/render_html.py`).
"""
