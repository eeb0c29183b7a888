"""Lays a document out on a grid of characters: lines of spans, still without colours. `page` is the way in.

rich colours the lines (`formats/terminal.py`). Tables, wrapping and cell widths are ours, although rich has them too.
Tried with rich 15, and not taken:

- tables: rich cuts texts at their end and squeezes every column. Here paths keep both ends, what is long goes below its
  row, and columns go away by their priority and are named. Twenty rows of nine columns took five times as long;
- wrapping: rich breaks between a number and its unit, and breaks long names into pieces;
- cell widths: rich's depend on its version and on the environment (`UNICODE_VERSION`), so that the same report would
  come out differently elsewhere. Markdown lays out its pictures here too, and needs no rich for it.
"""
