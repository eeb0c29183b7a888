"""Runs of a compiled step on real devices: its arguments and its measurements."""
