"""The version of memprof, defined only here."""

__version__ = "0.2.0"
