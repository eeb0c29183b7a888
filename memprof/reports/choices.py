"""What a reader may choose of a report: a file of its own, since the command line offers it before it needs reports."""

from __future__ import annotations

from enum import StrEnum


class By(StrEnum):
    """What the bytes are added up by."""

    CATEGORY = "category"
    MODULE = "module"
    SOURCE = "source"
    DTYPE = "dtype"
    PHASE = "phase"
    BUFFER = "buffer"


class Order(StrEnum):
    """How the rows of a comparison follow one another."""

    GIVEN = "given"
    FOOTPRINT = "footprint"
