"""Options of ours in a compile: one that this XLA lacks is left out, and one that a step asks for is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memprof.capture.xla import xla_adapter
from memprof.errors import MemprofError


def with_options(
    compile_it: Callable[[Mapping[str, Any]], Any], ours: Mapping[str, Any], asked: Mapping[str, Any]
) -> Any:
    """Compile with options of ours.

    Args:
        compile_it: called with options of ours, until XLA knows all of them.
        asked: the options that the step asks for.

    Raises:
        MemprofError: XLA lacks an option that the step asks for, or rejects its value.
    """
    while True:
        try:
            return compile_it(ours)
        except Exception as error:  # XLA's own errors have no common type
            unknown = [name for name in ours if xla_adapter.rejected_option(error, [name])]
            if unknown:
                ours = {name: value for name, value in ours.items() if name not in unknown}
                continue
            reason = xla_adapter.rejected_option(error, asked)
            if reason is None:
                raise
            raise MemprofError(f"XLA does not accept an option of this step: {reason}") from error
