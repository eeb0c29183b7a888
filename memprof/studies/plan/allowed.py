"""Changes that a plan may try before it adds checkpoints, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from memprof.errors import MemprofError
from memprof.studies.changes import minibatches
from memprof.studies.changes.attention import attention_kernels
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.chunks import in_chunks
from memprof.studies.changes.donation import donations
from memprof.studies.changes.read_rows import only_read_rows


class Allowed(Enum):
    """A change that keeps a step's results, up to rounding."""

    DONATE = "donate"
    ONLY_READ_ROWS = "only-read-rows"
    ACCUMULATE = "accumulate"
    CHUNKED_EXAMPLES = "chunked-examples"
    CHUNKED_LOSS = "chunked-loss"
    FUSED_ATTENTION = "fused-attention"
    CHUNKED_ATTENTION = "chunked-attention"

    @property
    def rule(self) -> str:
        """The advice rule that proposes it."""
        return _RULES.get(self, self.value.replace("-", "_"))

    @property
    def family(self) -> Callable[[Step], Iterator[Change]]:
        """The function that yields the change."""
        return _FAMILIES.get(self, in_chunks)

    @property
    def is_gradual(self) -> bool:
        """Whether the family yields several versions, each saving more. The first that fits is used."""
        return self in (Allowed.ACCUMULATE, Allowed.CHUNKED_EXAMPLES)


_RULES = {
    Allowed.DONATE: "donate_state",
    Allowed.ONLY_READ_ROWS: "whole_prompt_logits",
    Allowed.ACCUMULATE: minibatches.RULE,
    Allowed.FUSED_ATTENTION: "flash_attention",
}
_FAMILIES: dict[Allowed, Callable[[Step], Iterator[Change]]] = {
    Allowed.DONATE: donations,
    Allowed.ONLY_READ_ROWS: only_read_rows,
    Allowed.ACCUMULATE: minibatches.accumulated_more_and_more,
    Allowed.CHUNKED_EXAMPLES: minibatches.chunked_more_and_more,
    Allowed.FUSED_ATTENTION: attention_kernels,
}


def parse_allowed(names: str) -> tuple[Allowed, ...]:
    """Parse comma-separated names of changes; "none" allows no change.

    Raises:
        MemprofError: a name is unknown.
    """
    known = {each.value: each for each in Allowed}
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if asked == ["none"]:
        return ()
    for name in asked:
        if name not in known:
            raise MemprofError(f"a plan cannot be allowed {name!r}: there are {', '.join(known)}")
    return tuple(known[name] for name in asked)
