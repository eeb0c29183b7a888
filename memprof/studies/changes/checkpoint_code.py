"""Write checkpoints around user functions as code to paste: `Block.__call__ = nn.remat(Block.__call__)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


PLAIN = Form(head="import jax\n", call="jax.checkpoint")
WITH_STATIC = Form(head=f"import jax\n\n{_HELPER}", call="checkpointed")
FORMS = {
    "flax.linen": (
        Form(head="import jax\nfrom flax import linen as nn\n", call="nn.remat"),
        Form(head=f"import jax\nfrom flax import linen as nn\n\n{_LINEN_HELPER}", call="checkpointed"),
    ),
    "flax.nnx": (Form(head="import jax\nfrom flax import nnx\n", call="nnx.remat"), WITH_STATIC),
    "equinox": (Form(head="import equinox as eqx\nimport jax\n", call="eqx.filter_checkpoint"), WITH_STATIC),
    "haiku": (
        Form(head=f"import haiku as hk\nimport jax\n\n{_HELPER.replace('jax.checkpoint(', 'hk.remat(')}",
              call="checkpointed"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A user function that code puts a checkpoint around.

    Attributes:
        title: its name in a sentence.
        definition: name of the function, or of the method's class. The code goes after its definition.
        target: the name that the code assigns to.
        file, line: the place of its first equation.
        is_loop: whether it is the body of a scan.
        bound: the `Bound` of the definition; None if it exists only within a call.
    """

    title: str
    definition: str
    target: str
    file: str
    line: int
    is_loop: bool
    form: Form
    bound: Any = None

    def assignment(self, policy: str) -> str:
        """Return the line that puts a checkpoint around it.

        Args:
            policy: an expression; if empty, the function keeps only its inputs.
        """
        options = (f", policy={policy}" if policy else "") + (", prevent_cse=False" if self.is_loop else "")
        return f"{self.target} = {self.form.call}({self.target}{options})\n"


def forms_of(cls: type | None, *, is_in_haiku: bool = False) -> tuple[Form, ...]:
    """Return the forms of a checkpoint around a function, or a method of `cls`, shortest first.

    Args:
        is_in_haiku: whether it runs within `hk.transform`. The parameters that it makes there, when the model is
            initialized, would leak from `jax.checkpoint`.
    """
    for base in () if cls is None else cls.__mro__:
        for package, forms in FORMS.items():
            if base.__module__.startswith(package) and base.__name__ == "Module":
                return forms
    return FORMS["haiku"] if is_in_haiku else (PLAIN, WITH_STATIC)


def policy_of_jax(name: str) -> str:
    """Return the expression for one of JAX's policies; empty for the default policy."""
    return "" if name == "nothing_saveable" else f"jax.checkpoint_policies.{name}"


def code_of(written: Sequence[Written], policy: str, definitions: str = "") -> str:
    """Return the code for functions that can be assigned where they are defined.

    Args:
        policy: an expression for the policy; if empty, a function keeps only its inputs.
        definitions: code that defines the names in this expression.
    """
    heads = "".join(dict.fromkeys(each.form.head for each in written))
    lines = [
        f"# in {Path(each.file).name}, after the definition of {each.definition}\n{each.assignment(policy)}"
        for each in written
    ]
    has_files = len({each.file for each in written}) > 1
    in_each = "# the code above goes into each of these files\n" if has_files else ""
    return f"{heads}{definitions}\n{in_each}{''.join(lines)}"


def code_by_place(written: Sequence[Written], policy: str) -> str:
    """Return the code for functions that are defined within the step, with an expression for the policy.

    An import within a function would make the name local to it, so the imports go to the top of the file.
    """
    lines = [
        f"# in {Path(each.file).name}, after the definition of {each.definition} (line {each.line})\n"
        f"{each.assignment(policy)}"
        for each in written
    ]
    head = max((each.form.head for each in written), key=len)  # it begins with the imports of the shorter ones
    return f"# at the top of {Path(written[0].file).name}\n{head}\n{''.join(lines)}"
