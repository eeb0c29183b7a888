"""The request to the process that builds an engine, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REQUEST_FILE, RESULT_FILE, LOG_FILE = "request.json", "result.json", "builder.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A dimension to make variable, and a smaller size for which a second model exists."""

    name: str
    size: int
    smaller: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """An engine to build.

    Attributes:
        model: path of the ONNX file.
        name: name of the model in messages.
        maxima: maxima of the variable dimensions, by name.
        varying: dimensions to make variable, although they are fixed in the model.
        smaller_models: paths of models with other sizes of these dimensions (see `varying.vary`).
        int8: convert products by weights to 8-bit integers.
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
    """An array. `dtype` is the builder's name for inputs and outputs, and numpy's for weights, which have a size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The result of a build.

    Attributes:
        error: the error message if the model cannot be built; empty if it was built.
        static_messages: messages of an engine for the maxima alone, if dimensions vary.
    """

    error: str = ""
    version: str = ""
    messages: list[str] = field(default_factory=list)
    static_messages: list[str] | None = None
    inputs: list[NamedArray] = field(default_factory=list)
    outputs: list[NamedArray] = field(default_factory=list)
    weights: list[NamedArray] = field(default_factory=list)
    seconds: float = 0.0
