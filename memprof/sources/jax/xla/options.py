"""Compile options: memprof drops its own option if this XLA lacks it, but a step's missing option is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memprof.errors import MemprofError
from memprof.sources.jax.xla import xla_adapter


def with_options(
    compile_it: Callable[[Mapping[str, Any]], Any], ours: Mapping[str, Any], asked: Mapping[str, Any]
) -> Any:
    """Compile with memprof's own options, without those that this XLA lacks.

    Args:
        compile_it: the compile; called with fewer of memprof's options until XLA accepts them all.
        ours: memprof's own options.
        asked: the options that the step requests.

    Raises:
        MemprofError: XLA lacks an option that the step requests, or rejects its value.
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
