"""Error messages for lines of a step that need values, which a trace of shapes does not have."""

from __future__ import annotations

import traceback

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from memprof.sources.torch.places import is_own_file

_OF_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_UNSUPPORTED = (UnsupportedFakeTensorException, UnsupportedOperatorException)


def needs_values(error: BaseException) -> str:
    """Return the rest of an error message after the name of the step; empty if tracing did not cause the error."""
    if isinstance(error, _OF_VALUES):
        operation = str(getattr(error, "func", "")).removesuffix(".default")
        return f"makes shapes depend on the values of tensors ({operation}{_at(error)}), which a trace does not have"
    if isinstance(error, _UNSUPPORTED):
        return f"uses an operation that cannot be traced with shapes only ({error}{_at(error)})"
    if "data pointer" in str(error) or "data_ptr" in str(error):
        return f"reads the memory of a tensor{_at(error).replace(',', '')}, which a trace of shapes does not have"
    return ""


def _at(error: BaseException) -> str:
    """Return the innermost line of the user's own code."""
    own = [each for each in traceback.extract_tb(error.__traceback__) if is_own_file(each.filename)]
    return f", {own[-1].filename}:{own[-1].lineno}" if own else ""
