"""Put checkpoints around the layers of a step, with one of JAX's policies.

If the layer's function is found in the user's program, the code is executed there. Otherwise the same checkpoints are
put around the layer's blocks (see `capture/checkpointing`), and the code names its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.extend import core

from memprof.sources.jax.checkpointing.apply import checkpointed, differentiated
from memprof.sources.jax.checkpointing.evaluation import blocks_of
from memprof.sources.jax.checkpointing.layers import Layer, calls_counted, layers_of
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.rebinding import Bound, find_bound, pasted_anew
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import applied_code, step_of_code
from memprof.workloads.intents import Aim, Intent

_POLICIES = {  # what is kept for the backward pass, ordered by the amount of recomputation
    "dots_saveable": "the results of matrix products",
    "dots_with_no_batch_dims_saveable": "the results of matrix products with weights",
    "nothing_saveable": "their inputs alone",
}
_CHECKPOINTS = frozenset({"remat", "remat2", "checkpoint"})
_HELPER = '''
def checkpointed(function, **options):
    """`function` under jax.checkpoint; arguments that are not arrays are passed on unchanged."""

    def call(*args, **kwargs):
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def run(arrays):
            given = list(leaves)
            for place, array in zip(places, arrays):
                given[place] = array
            args, kwargs = jax.tree.unflatten(structure, given)
            return function(*args, **kwargs)

        return jax.checkpoint(run, **options)([leaves[place] for place in places])

    return call

'''

_LINEN_HELPER = '''
def checkpointed(method, **options):
    """`method` of a module under nn.remat; arguments that are not arrays are passed on unchanged."""

    def call(module, *args, **kwargs):
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

        def run(module, arrays):
            given = list(leaves)
            for place, array in zip(places, arrays):
                given[place] = array
            args, kwargs = jax.tree.unflatten(structure, given)
            return method(module, *args, **kwargs)

        return nn.remat(run, **options)(module, [leaves[place] for place in places])

    return call

'''


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A way to write a checkpoint.

    Attributes:
        head: imports and helpers.
        call: name of the callable that takes a function and options.
    """

    head: str
    call: str


_PLAIN = _Form(head="import jax\n", call="jax.checkpoint")
_WITH_STATIC = _Form(head=f"import jax\n\n{_HELPER}", call="checkpointed")
_FORMS = {
    "flax.linen": (
        _Form(head="import jax\nfrom flax import linen as nn\n", call="nn.remat"),
        _Form(head=f"import jax\nfrom flax import linen as nn\n\n{_LINEN_HELPER}", call="checkpointed"),
    ),
    "flax.nnx": (_Form(head="import jax\nfrom flax import nnx\n", call="nnx.remat"), _WITH_STATIC),
    "equinox": (_Form(head="import equinox as eqx\nimport jax\n", call="eqx.filter_checkpoint"), _WITH_STATIC),
    "haiku": (
        _Form(head=f"import haiku as hk\nimport jax\n\n{_HELPER.replace('jax.checkpoint(', 'hk.remat(')}",
              call="checkpointed"),
    ),
}  # fmt: skip


def recomputations(step: Step) -> Iterator[Change]:
    """Yield the step with checkpoints around the layers that it differentiates, one change for each policy."""
    if step.is_built_in:
        return
    with checkpointed(None) as functions:
        traced_jaxpr(step.spec, step.target)
    layers = list({each.name: each for closed in functions for each in layers_of(closed)}.values())
    changed = [closed for closed in functions if not layers or layers_of(closed)]
    num_blocks = sum(count for closed in changed for _, count in blocks_of(closed))
    if not num_blocks:
        return
    is_loop = any(layer.is_loop for layer in layers)
    one = layers[0].own_name if layers else "the loss"
    parts = "the body of each scan" if is_loop else "the layers" if num_blocks > 1 else one
    where = ", ".join(f"{each.name} ({Path(each.file).name}:{each.line})" for each in layers)
    written = _effective(step, layers)
    for policy, kept in _POLICIES.items():
        made = _change(step, layers, written, policy)
        if made is None:
            return
        code, spec, around = made
        yield Change(
            rule=f"recompute_{policy.removesuffix('_saveable')}",
            intent=Intent(aim=Aim.RECOMPUTE_SCAN if is_loop else Aim.RECOMPUTE_MODULES),
            what=f"Checkpoint {parts}, and keep {kept}",
            evidence=f"the backward pass goes through {num_blocks} {'layers' if num_blocks > 1 else 'function'}"
            + (f"; {where}" if where else ""),
            cost="recomputes the rest of the forward pass",
            code=code,
            spec=spec,
            around=around,
        )


def _change(
    step: Step, layers: list[Layer], written: list[_Written] | None, policy: str
) -> tuple[str, StepSpec, Callable[[], AbstractContextManager[object]]] | None:
    """Return the code, the changed step, and the context to trace it in; None if no code would make this change."""
    spec = step.spec
    if written is not None:
        code = _code(written, policy)
        return code, spec, partial(pasted_anew, code, [each.bound for each in written])
    rule: Any = getattr(jax.checkpoint_policies, policy)
    if layers and all(layer.is_local for layer in layers) and _are_called(step, layers):
        return _code_by_place(layers, policy), spec, partial(checkpointed, rule, chosen=_has_layers)
    applied = applied_code(spec, f"memprof.apply(jax.checkpoint_policies.{policy})")
    if applied is None:
        return None
    head, line = applied.rsplit("\n\n", 1)
    imports = head if "import jax" in head.splitlines() else f"import jax\n{head}"
    code = f"{imports}\n\n# no change to a single line of yours would checkpoint only the repeated part\n{line}\n"
    return code, step_of_code(spec, code), nullcontext


def _are_called(step: Step, layers: list[Layer]) -> bool:
    """Whether each layer's function is called once per block, and so does not run all of its blocks in one call."""
    wanted = {(each.name, each.file): 1 if each.is_loop else each.count for each in layers}
    with jit_adapter.traced_anew(), calls_counted() as calls:
        traced_jaxpr(step.spec, step.target)
    return all(calls[function] >= count for function, count in wanted.items())


def _has_layers(closed: core.ClosedJaxpr) -> bool:
    return bool(layers_of(closed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A layer that code can assign, and the form of that code."""

    layer: Layer
    bound: Bound
    form: _Form

    @property
    def target(self) -> str:
        return f"{self.bound.name}.{self.bound.method}" if self.bound.method else self.bound.name


def _effective(step: Step, layers: list[Layer]) -> list[_Written] | None:
    """Return the form of the code that takes effect in the user's program.

    Returns:
        The layers with their forms, or None if a layer cannot be assigned from outside, or no form takes effect.
    """
    found = [(layer, find_bound(layer.name, layer.file)) for layer in layers]
    if not found or any(bound is None for _, bound in found):
        return None
    least = _num_checkpoints(step) + sum(1 if layer.is_loop else layer.count for layer in layers)
    for number in range(2):
        written = [
            _Written(layer=layer, bound=bound, form=forms[min(number, len(forms) - 1)])
            for layer, bound in found
            if bound is not None and (forms := _forms_of(bound))
        ]
        try:
            with pasted_anew(_code(written, "nothing_saveable"), [each.bound for each in written]):
                after = _num_checkpoints(step)
        except Exception:  # raised by the user's code with ours in it
            continue
        if after >= least:  # a function that calls all layers would have a single checkpoint around them all
            return written
    return None


def _num_checkpoints(step: Step) -> int:
    """Return the number of checkpoints in the functions that the step differentiates."""
    with differentiated() as functions:
        traced_jaxpr(step.spec, step.target)
    return sum(_checkpoints_in(closed.jaxpr) for closed in functions)


def _checkpoints_in(jaxpr: core.Jaxpr) -> int:
    return sum(
        (each.primitive.name in _CHECKPOINTS) + sum(map(_checkpoints_in, core.jaxprs_in_params(each.params)))
        for each in jaxpr.eqns
    )


def _forms_of(bound: Bound) -> tuple[_Form, ...]:
    if bound.method:
        for cls in bound.value.__mro__:
            for package, forms in _FORMS.items():
                if cls.__module__.startswith(package) and cls.__name__ == "Module":
                    return forms
    return (_PLAIN, _WITH_STATIC)


def _code(written: list[_Written], policy: str) -> str:
    heads = "".join(dict.fromkeys(each.form.head for each in written))
    lines = [
        f"# in {Path(each.layer.file).name}, after the definition of {each.bound.name}\n"
        f"{each.target} = {each.form.call}({each.target}{_options(policy, each.layer)})\n"
        for each in written
    ]
    return f"{heads}\n{''.join(lines)}"


def _code_by_place(layers: list[Layer], policy: str) -> str:
    """Return the code for layers that are defined within the step.

    An import within a function would make the name local to it, so the imports have a place of their own.
    """
    lines = [
        f"# in {Path(each.file).name}, after the definition of {each.own_name} (line {each.line})\n"
        f"{_line(each, policy)}"
        for each in layers
    ]
    is_loop = all(each.is_loop for each in layers)
    head = (_PLAIN if is_loop else _WITH_STATIC).head
    return f"# at the top of {Path(layers[0].file).name}\n{head}\n{''.join(lines)}"


def _line(layer: Layer, policy: str) -> str:
    call = (_PLAIN if layer.is_loop else _WITH_STATIC).call
    return f"{layer.own_name} = {call}({layer.own_name}{_options(policy, layer)})\n"


def _options(policy: str, layer: Layer) -> str:
    kept = "" if policy == "nothing_saveable" else f", policy=jax.checkpoint_policies.{policy}"
    return kept + (", prevent_cse=False" if layer.is_loop else "")
