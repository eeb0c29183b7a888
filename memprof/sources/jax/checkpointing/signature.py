"""Signatures that distinguish the operations of a block for a checkpoint policy, and policies that save some of them.

JAX asks a policy for each operation of a checkpointed function whether its results are saved for the backward pass. It
passes the primitive, the inputs' shapes and dtypes, and the parameters. Operations that agree in these are saved
together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from memprof.analysis.records.checkpoints import Signature

_PARAMETER = "dimension_numbers"

Policy = Callable[..., bool]


def signature_of(primitive: Any, avals: Collection[Any], params: Mapping[str, Any]) -> Signature:
    """Return the signature of an operation."""
    inputs = tuple((tuple(aval.shape), str(aval.dtype)) for aval in avals if hasattr(aval, "dtype"))
    return Signature(primitive.name, inputs, str(params.get(_PARAMETER)))


def policy_of(kept: Collection[Signature]) -> Policy:
    """Return the policy for `jax.checkpoint` that saves the results of some operations."""
    signatures = frozenset(kept)

    def policy(primitive: Any, *avals: Any, **params: Any) -> bool:
        return signature_of(primitive, avals, params) in signatures

    return policy
