"""Write checkpoints as code to paste."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from memprof.analysis.records.checkpoints import LAYER_INPUT, Checkpoints, Signature
from memprof.studies.changes import checkpoint_code
from memprof.studies.changes.checkpoint_code import Written

POLICY = "checkpoint_policy"  # its name in the pasted code; reinforcement learning programs already have a `policy`
_HEAD = """import jax

# The operations of a layer whose results are kept for the backward pass: primitive, inputs, dimension numbers.
"""
_HEAD_OF_SCANS_IN_GROUPS = _HEAD.replace("import jax\n", "import jax\nimport jax.numpy as jnp\n")
_HEAD_OF_FUNCTIONS = """
# The operations whose results are kept for the backward pass: primitive, inputs, dimension numbers.
"""
_POLICY = """

def {policy}(primitive, *inputs, **params):
    arrays = tuple((tuple(each.shape), str(each.dtype)) for each in inputs if hasattr(each, "dtype"))
    return (primitive.name, arrays, str(params.get("dimension_numbers"))) in {kept}

"""
_OFFLOADING_HEAD = """import jax
from jax.ad_checkpoint import Offloadable, checkpoint_name

TO_HOST = Offloadable(src="device", dst="pinned_host")
# The operations of a layer whose results are kept for the backward pass: primitive, inputs, dimension numbers.
"""
_OFFLOADED = """# The operations whose results wait for it in host memory.
"""
_OFFLOADING_POLICY = """

def {policy}(primitive, *inputs, **params):
    arrays = tuple((tuple(each.shape), str(each.dtype)) for each in inputs if hasattr(each, "dtype"))
    is_input = primitive.name == "name" and params["name"] == "{input}"
    operation = ("{input}" if is_input else primitive.name, arrays, str(params.get("dimension_numbers")))
    return TO_HOST if operation in OFFLOADED else operation in KEPT

"""
_NAMED_INPUT = """
def with_named_input(body):
    def named(carry, layer):
        carry = jax.tree.map(lambda each: checkpoint_name(each, "{input}"), carry)
        return body(carry, layer)

    return named


# {body}, in place of any checkpoint that is there.
# For a scan of a framework (nn.scan, nnx.scan, hk.layer_stack): x = checkpoint_name(x, "{input}") in the layer, and
# nn.remat, nnx.remat or hk.remat with this policy around the layer.
body = jax.checkpoint(with_named_input(body), policy={policy}, prevent_cse=False)
"""
_LAYERS = """# Around {layers}; with the same policy, flax.linen has
# nn.remat(Layer, policy={policy}), nnx has nnx.remat, and Equinox eqx.filter_checkpoint:
layer = jax.checkpoint(layer, policy={policy})
"""
_LOOPS = """# {body}, in place of any checkpoint that is there:
body = jax.checkpoint(body, policy={policy}, prevent_cse=False)
"""
_SCAN_IN_GROUPS = """
def scan_in_groups(body, init, xs=None, length=None, reverse=False, **options):
    \"\"\"jax.lax.scan with a checkpoint around each iteration, and another one around each group of {size}.\"\"\"
    body = jax.checkpoint(body, policy={policy}, prevent_cse=False)

    def scan(init, xs, length):
        return jax.lax.scan(body, init, xs, length, reverse, **options)

    length = len(jax.tree.leaves(xs)[0]) if length is None else length
    if length < {twice}:
        return scan(init, xs, length)
    num_groups, num_rest = divmod(length, {size})
    start = num_rest if reverse else 0
    stop = start + num_groups * {size}
    groups = jax.tree.map(lambda each: each[start:stop].reshape(num_groups, {size}, *each.shape[1:]), xs)
    group = jax.checkpoint(lambda carry, rows: scan(carry, rows, {size}), prevent_cse=False)
    carry, results = jax.lax.scan(group, init, groups, num_groups, reverse)
    results = jax.tree.map(lambda each: each.reshape(num_groups * {size}, *each.shape[2:]), results)
    if not num_rest:
        return carry, results
    carry, rest = scan(carry, jax.tree.map(lambda each: each[:start] if reverse else each[stop:], xs), num_rest)
    parts = (rest, results) if reverse else (results, rest)
    return carry, jax.tree.map(lambda *each: jnp.concatenate(each), *parts)


# Call scan_in_groups in place of jax.lax.scan for {bodies}, without any checkpoint that is there.
# For a scan of a framework (nn.scan, nnx.scan, hk.scan), use memprof.apply(plan), with the plan of memprof.plan.
"""
_LAYERS_IN_GROUPS = """
def layers_in_groups(layers, x):
    \"\"\"Call layers in turn, with a checkpoint around each one, and another one around each group of {size}.\"\"\"

    def group(x, layers):
        for layer in layers:
            x = jax.checkpoint(lambda x, layer=layer: layer(x), policy={policy})(x)
        return x

    for start in range(0, len(layers), {size}):
        x = jax.checkpoint(lambda x, start=start: group(x, layers[start : start + {size}]))(x)
    return x


# Call layers_in_groups in place of the loop over the layers{made_by}. Its layers are functions of what
# each layer passes on to the next, such as [partial(block, params) for params in layers].
# For modules of flax.linen, nnx or Haiku, use memprof.apply(plan), with the plan of memprof.plan.
"""
_OUTER_LOOP = """# The same for the body of the scan around it, without a policy:
outer_body = jax.checkpoint(outer_body, prevent_cse=False)
"""
_TWO_LOOPS = """# The scan in two parts: the first {num_first} layers, then the rest. It scans over `layers`:
#   x, _ = jax.lax.scan(first_body, x, jax.tree.map(lambda each: each[:{num_first}], layers))
#   x, _ = jax.lax.scan(rest_body, x, jax.tree.map(lambda each: each[{num_first}:], layers))
first_body = jax.checkpoint(body, policy={policy}, prevent_cse=False)
"""
_REST_BODY = """rest_body = jax.checkpoint(body, policy=rest_policy, prevent_cse=False)
"""


def code_of(checkpoints: Checkpoints, *, is_loop: bool, is_nested: bool = False, places: Sequence[str] = ()) -> str:
    """Return code that defines the checkpoint policies and puts them around the blocks.

    Args:
        is_loop: whether the blocks are bodies of scans.
        is_nested: whether these scans are within other scans.
        places: the functions that compute the blocks, with files and lines, if known.
    """
    named = "".join(f"{each}, " for each in places)
    body = f"Around {named}{'the bodies of the scans' if len(places) > 1 else 'the body of the scan'}"
    made_by = f" ({', '.join(places)})" if places else ""
    if checkpoints.offloaded:
        return _offloading_code(checkpoints, body)
    policies = _policy(POLICY, "KEPT", checkpoints.kept)
    if checkpoints.group_size is not None and is_nested:
        return f"{_HEAD}{policies}{_LOOPS.format(body=body, policy=POLICY)}{_OUTER_LOOP}"
    if checkpoints.group_size is not None and is_loop:
        size, bodies = checkpoints.group_size, ", ".join(places) or "the body of the scan"
        uses = _SCAN_IN_GROUPS.format(size=size, twice=2 * size, policy=POLICY, bodies=bodies)
        return f"{_HEAD_OF_SCANS_IN_GROUPS}{policies}{uses}"
    if is_loop and checkpoints.num_first is not None:
        return f"{_HEAD}{policies}{_split_scan_code(checkpoints)}"
    if is_loop:
        return f"{_HEAD}{policies}{_LOOPS.format(body=body, policy=POLICY)}"
    if checkpoints.group_size is not None:
        uses = _LAYERS_IN_GROUPS.format(size=checkpoints.group_size, policy=POLICY, made_by=made_by)
        return f"{_HEAD}{policies}{uses}"
    if checkpoints.num_first is None:
        return f"{_HEAD}{policies}{_LAYERS.format(layers=f'each layer{made_by}', policy=POLICY)}"
    first = f"each of the first {checkpoints.num_first} layers" if checkpoints.num_first > 1 else "the first layer"
    uses = _LAYERS.format(layers=f"{first}{made_by}", policy=POLICY)
    if checkpoints.kept_by_rest is None:
        return f"{_HEAD}{policies}{uses}# The layers after them stay without a checkpoint.\n"
    rest = _policy("rest_policy", "KEPT_BY_REST", checkpoints.kept_by_rest)
    return f"{_HEAD}{policies}{rest}{uses}\n{_LAYERS.format(layers='each layer after them', policy='rest_policy')}"


def code_of_functions(checkpoints: Checkpoints, functions: Sequence[Written], *, replaces_others: bool = False) -> str:
    """Return code that defines the policy and puts checkpoints with it around functions.

    Args:
        replaces_others: whether checkpoints in the user's code must be removed.
    """
    others = "\n# These checkpoints take the place of any that are there." if replaces_others else ""
    definitions = f"{_HEAD_OF_FUNCTIONS}{_policy(POLICY, 'KEPT', checkpoints.kept)}{others}"
    return checkpoint_code.code_of(functions, POLICY, definitions)


def _split_scan_code(checkpoints: Checkpoints) -> str:
    """Return code that splits a scan in two; the second part may have no checkpoint."""
    uses = _TWO_LOOPS.format(num_first=checkpoints.num_first, policy=POLICY)
    if checkpoints.kept_by_rest is None:
        return f"{uses}rest_body = body  # without a checkpoint\n"
    return f"{_policy('rest_policy', 'KEPT_BY_REST', checkpoints.kept_by_rest)}{uses}{_REST_BODY}"


def _offloading_code(checkpoints: Checkpoints, body: str) -> str:
    """Return code for a scan whose body offloads results to host memory."""
    tables = f"{_table('KEPT', checkpoints.kept)}{_OFFLOADED}{_table('OFFLOADED', checkpoints.offloaded)}"
    has_input = any(each.primitive == LAYER_INPUT for each in checkpoints.offloaded)
    uses = (_NAMED_INPUT if has_input else _LOOPS).format(input=LAYER_INPUT, body=body, policy=POLICY)
    return f"{_OFFLOADING_HEAD}{tables}{_OFFLOADING_POLICY.format(input=LAYER_INPUT, policy=POLICY)}{uses}"


def _policy(name: str, kept_name: str, kept: Collection[Signature]) -> str:
    return _table(kept_name, kept) + _POLICY.format(policy=name, kept=kept_name)


def _table(name: str, operations: Collection[Signature]) -> str:
    entries = "".join(f"    {tuple(each)!r},\n" for each in sorted(operations))
    return f"{name} = {{\n{entries}}}\n" if entries else f"{name} = set()\n"
