"""Lay a document out on a grid of characters: lines of spans, without colours. The entry point is `page`.

rich colours the lines (`formats/terminal.py`). Tables, wrapping and cell widths are implemented here, although rich has
them too. We tried rich 15 and rejected it for:

- tables: rich cuts texts at their end and narrows every column. Here, paths keep both ends, long cells move below their
  row, and columns are dropped by priority and then named. rich took five times as long for twenty rows of nine columns;
- wrapping: rich breaks lines between a number and its unit, and splits long names;
- cell widths: rich's widths depend on its version and on the environment (`UNICODE_VERSION`), so the same report would
  look different on another machine. The Markdown format also lays out its pictures here, without rich.
"""
