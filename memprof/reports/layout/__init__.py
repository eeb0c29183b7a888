"""Lays a document out on a grid of characters: lines of spans, still without colours. `page` is the way in."""
