"""The names of values that XLA recomputes by itself to stay below a memory limit.

XLA's pass HloRematerialization clones an instruction whose result would be live for long. The clone is named
`NAME.remat`, `NAME.remat2`, ...; a value restored from a compressed copy is named `NAME.remat_uncompressed`.
Values that `jax.checkpoint` recomputes have no such names.
"""

from __future__ import annotations

import re

_SUFFIX = r"\.remat(?:_uncompressed)?\d*(?:\.(?:\d+|clone))*"
_NAME = re.compile(rf"{_SUFFIX}$")
# In a serialized instruction, the tag of the opcode follows the name.
_SERIALIZED_NAME = re.compile(_SUFFIX.encode() + rb"\x12")


def is_rematerialized(name: str) -> bool:
    """Whether an instruction with this name is a clone that XLA has made to save memory."""
    return _NAME.search(name) is not None


def may_be_rematerialized(hlo_proto: bytes) -> bool:
    """Whether a serialized `xla.HloProto` seems to contain such clones. Searches the bytes only, in milliseconds."""
    return _SERIALIZED_NAME.search(hlo_proto) is not None
