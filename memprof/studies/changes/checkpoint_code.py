"""Write checkpoints around functions of the user as code to paste: `Block.__call__ = nn.remat(Block.__call__)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memprof.sources.jax.checkpointing.layers import Layer
from memprof.sources.jax.tracing.rebinding import Bound

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
class Form:
    """A way to write a checkpoint.

    Attributes:
        head: imports and helpers.
        call: name of the callable that takes a function and options.
    """

    head: str
    call: str


_PLAIN = Form(head="import jax\n", call="jax.checkpoint")
_WITH_STATIC = Form(head=f"import jax\n\n{_HELPER}", call="checkpointed")
FORMS = {
    "flax.linen": (
        Form(head="import jax\nfrom flax import linen as nn\n", call="nn.remat"),
        Form(head=f"import jax\nfrom flax import linen as nn\n\n{_LINEN_HELPER}", call="checkpointed"),
    ),
    "flax.nnx": (Form(head="import jax\nfrom flax import nnx\n", call="nnx.remat"), _WITH_STATIC),
    "equinox": (Form(head="import equinox as eqx\nimport jax\n", call="eqx.filter_checkpoint"), _WITH_STATIC),
    "haiku": (
        Form(head=f"import haiku as hk\nimport jax\n\n{_HELPER.replace('jax.checkpoint(', 'hk.remat(')}",
              call="checkpointed"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A layer that code can assign, and the form of that code."""

    layer: Layer
    bound: Bound
    form: Form

    @property
    def target(self) -> str:
        return f"{self.bound.name}.{self.bound.method}" if self.bound.method else self.bound.name


def forms_of(bound: Bound) -> tuple[Form, ...]:
    """Return the forms of a checkpoint around a function or method, the shortest first."""
    if bound.method:
        for cls in bound.value.__mro__:
            for package, forms in FORMS.items():
                if cls.__module__.startswith(package) and cls.__name__ == "Module":
                    return forms
    return (_PLAIN, _WITH_STATIC)


def policy_of_jax(name: str) -> str:
    """Return the expression for one of JAX's policies; empty for the one that applies if none is given."""
    return "" if name == "nothing_saveable" else f"jax.checkpoint_policies.{name}"


def code_of(written: Sequence[Written], policy: str, definitions: str = "") -> str:
    """Return the code for functions that can be assigned where they are defined.

    Args:
        policy: an expression for the policy; if empty, a function keeps only its inputs.
        definitions: code that defines the names in this expression.
    """
    heads = "".join(dict.fromkeys(each.form.head for each in written))
    lines = [
        f"# in {Path(each.layer.file).name}, after the definition of {each.bound.name}\n"
        f"{each.target} = {each.form.call}({each.target}{_options(policy, each.layer)})\n"
        for each in written
    ]
    return f"{heads}{definitions}\n{''.join(lines)}"


def code_by_place(layers: Sequence[Layer], policy: str) -> str:
    """Return the code for layers that are defined within the step, with an expression for the policy.

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
    return (f", policy={policy}" if policy else "") + (", prevent_cse=False" if layer.is_loop else "")
