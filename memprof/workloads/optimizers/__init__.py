"""Optimizers: `catalogue.py` lists them by name, those of optax and ours; each of ours has a file here."""
