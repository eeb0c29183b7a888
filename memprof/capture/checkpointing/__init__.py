"""Checkpoints and chunks in a step that nobody has touched: its parts, and what their backward pass needs."""
