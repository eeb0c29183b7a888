"""Runs of unmodified training scripts that record every program they compile."""
