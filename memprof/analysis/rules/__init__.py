"""The attribution rules, one idea per file. Each file exposes a `RULE`; `attribution.py` finds them by itself."""
