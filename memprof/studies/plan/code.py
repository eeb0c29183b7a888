"""A policy as code to paste."""

from __future__ import annotations

from collections.abc import Collection

from memprof.analysis.records.checkpoints import Signature

_HEAD = """import jax

# The operations of a layer whose results are kept for the backward pass: primitive, inputs, dimension numbers.
KEPT = {
"""
_TAIL = """

def policy(primitive, *inputs, **params):
    arrays = tuple((tuple(each.shape), str(each.dtype)) for each in inputs if hasattr(each, "dtype"))
    return (primitive.name, arrays, str(params.get("dimension_numbers"))) in KEPT

"""
_LAYERS = """# Around each layer (flax.linen: nn.remat(Layer, policy=policy), nnx: nnx.remat(layer, policy=policy),
# Equinox: eqx.filter_checkpoint(layer, policy=policy)):
layer = jax.checkpoint(layer, policy=policy)
"""
_LOOPS = """# Around the body of the scan:
body = jax.checkpoint(body, policy=policy, prevent_cse=False)
"""


def code_of(kept: Collection[Signature], *, is_loop: bool) -> str:
    """The policy that keeps the results of some operations, and the line that uses it.

    Args:
        is_loop: the blocks are bodies of scans.
    """
    entries = "".join(f"    {tuple(each)!r},\n" for each in sorted(kept))
    return f"{_HEAD}{entries}}}\n{_TAIL}{_LOOPS if is_loop else _LAYERS}"
