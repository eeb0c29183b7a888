"""Optimizers: `catalogue.py` lists those of optax and memprof's own by name; each of our own has a file here."""
