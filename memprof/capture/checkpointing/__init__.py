"""Checkpoints around parts of a step that nobody has touched: the parts, and what their backward pass needs."""
