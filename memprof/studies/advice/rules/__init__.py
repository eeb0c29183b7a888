"""The rules of advice, one idea per file. Each file exposes a `RULE`; `advise.py` finds them by itself."""
