"""What is asked of the process that builds an engine, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REQUEST_FILE, RESULT_FILE, LOG_FILE = "request.json", "result.json", "builder.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A dimension that is to vary, and a smaller size of it for which there is a model, too."""

    name: str
    size: int
    smaller: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """An engine to build.

    Attributes:
        model: path of the ONNX file; `name` is what messages call it.
        maxima: of the dimensions that vary, by name.
        varying: dimensions that are to vary, though they are fixed in the model.
        smaller_models: for them: models with other sizes (see `varying.vary`).
        int8: whether products by weights are to be of 8-bit integers.
    """

    model: str
    name: str
    compute_capability: tuple[int, int]
    maxima: Mapping[str, int] = field(default_factory=dict)
    varying: tuple[Dimension, ...] = ()
    smaller_models: tuple[str, ...] = ()
    int8: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedArray:
    """An array by the builder's name of its type; a weight by numpy's, with its size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What came of it.

    Attributes:
        error: the sentence for a model that cannot be built; empty if it was.
        static_messages: of an engine for the maxima alone, if dimensions vary.
    """

    error: str = ""
    version: str = ""
    messages: list[str] = field(default_factory=list)
    static_messages: list[str] | None = None
    inputs: list[NamedArray] = field(default_factory=list)
    outputs: list[NamedArray] = field(default_factory=list)
    weights: list[NamedArray] = field(default_factory=list)
    seconds: float = 0.0
