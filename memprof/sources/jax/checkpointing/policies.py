"""Checkpoint policies: the operations whose results are saved, by what JAX tells a policy of each operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from jax.ad_checkpoint import Offloadable

from memprof.analysis.records.checkpoints import LAYER_INPUT, Signature

Policy = Callable[..., Any]
_TO_HOST = Offloadable(src="device", dst="pinned_host")


def signature_of(primitive: Any, avals: Collection[Any], params: Mapping[str, Any]) -> Signature:
    """Return the signature by which a checkpoint policy distinguishes an operation of a block.

    JAX asks a policy for each operation of a checkpointed function whether its results are saved for the backward pass.
    It passes the primitive, the inputs' shapes and dtypes, and the parameters. Operations that agree in these are saved
    together.
    """
    inputs = tuple((tuple(aval.shape), str(aval.dtype)) for aval in avals if hasattr(aval, "dtype"))
    is_input = primitive.name == "name" and params["name"] == LAYER_INPUT
    return Signature(LAYER_INPUT if is_input else primitive.name, inputs, str(params.get("dimension_numbers")))


def input_signature(value: Any) -> Signature:
    """Return the signature of a value that a scan carries into its body, by its shape and dtype."""
    return Signature(LAYER_INPUT, ((tuple(value.shape), str(value.dtype)),), "None")


def policy_of(kept: Collection[Signature], offloaded: Collection[Signature] = ()) -> Policy:
    """Return the policy for `jax.checkpoint` that saves the results of some operations, or moves them to the host."""
    saved, moved = frozenset(kept), frozenset(offloaded)

    def policy(primitive: Any, *avals: Any, **params: Any) -> Any:
        signature = signature_of(primitive, avals, params)
        return _TO_HOST if signature in moved else signature in saved

    return policy
