"""Checkpoints and chunks in an unmodified step: its blocks, and the values that their backward pass needs."""
