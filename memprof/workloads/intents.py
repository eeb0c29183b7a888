"""Intents, the changes that would reduce a step's memory, and means, the code that makes them.

Advice (`studies/advice`) finds in a compiled program what could be smaller, and says so as an intent. It knows no
technique. Each family of techniques says in `MEANS` how it follows intents: by code that runs when it is pasted into a
user's step, or in words where the code depends on the step; and by a technique if one does so to memprof's models.

    means_to(Intent(aim=Aim.DONATE, positions=(0, 2))).code.splitlines()
    # ["import jax", "step = jax.jit(step, donate_argnums=(0, 2))"]
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache

from memprof.workloads import techniques as techniques_package

# Names of the user's own step that code may take, with what they stand for. Code imports all others that it uses.
STEP_NAMES = {
    "step": "the jitted function",
    "params": "the parameters",
    "opt_state": "the optimizer state",
    "loss": "the function of the parameters and the batch that is differentiated",
    "learning_rate": "the learning rate",
    "optimizer": "the optax transformation",
    "gradients": "the gradients, before the update",
    "batch": "the batch",
    "cache": "the keys and values of earlier tokens",
    "mesh": "the device mesh",
    "block": "the function that applies one layer; its first argument is the layer's parameters",
    "body": "the body of a scan",
    "x": "an array between two layers, or the array that the advice names",
    "q": "queries (batch, tokens, heads, width), before attention",
    "k": "keys, with the same axes",
    "v": "values, with the same axes",
    "logits": "the logits",
}
_IMPORTS = {"jax": "import jax", "jnp": "import jax.numpy as jnp", "optax": "import optax"}


class Aim(Enum):
    """The goal of a change."""

    ACCUMULATE_GRADIENTS = auto()  # of minibatches
    CAST_ACCUMULATORS = auto()  # hold sums of gradients in 16 bits
    CAST_CACHE = auto()  # hold keys and values in 16 bits
    CAST_WEIGHTS = auto()  # hold weights in 16 bits
    CAST_WEIGHTS_AND_CACHE = auto()  # hold weights, keys and values in 16 bits
    CAST_PASSES = auto()  # compute in 16 bits
    CAST_WEIGHTS_IN_LAYERS = auto()  # cast weights where they are used, not before
    CHUNK_ARRAY = auto()  # compute one array in pieces
    CHUNK_ATTENTION = auto()  # compute attention for a part of the queries at a time
    CHUNK_LOSS = auto()  # compute logits and loss in parts
    CHUNK_UPDATE = auto()  # update one parameter after another
    CONVERT_WEIGHTS_ONCE = auto()  # instead of in every call
    DIVIDE_BATCH = auto()  # over mesh axes; so are the next two
    DIVIDE_LOGITS = auto()
    DIVIDE_STATE = auto()  # optimizer state, or parameters
    DONATE = auto()
    FACTOR_OPTIMIZER_STATE = auto()  # keep second moments by row and column
    FOLD_AXIS = auto()  # to fill whole tiles
    FUSE_ATTENTION = auto()  # use an attention kernel that holds no probabilities
    GATHER_IN_LAYERS = auto()  # gather parameters from other devices when their layer needs them
    FILL_CACHE = auto()  # write into a cache of full length instead of appending to it
    GENERATE_PRODUCTS = auto()  # have XLA generate matmul kernels instead of calling a library
    KEEP_BATCH_DIVIDED = auto()  # constrain arrays computed from a batch to stay divided like the batch
    KEEP_LAST_LOGITS = auto()  # instead of those of a whole prompt
    KEEP_WINDOW = auto()  # hold only the tokens of the cache that attention reads
    NARROW_OPTIMIZER_STATE = auto()  # hold it in 16 bits
    OFFLOAD_OPTIMIZER_STATE = auto()
    RECOMPUTE_ALL_BUT_PRODUCTS = auto()  # keep only results of matrix products
    RECOMPUTE_MODULES = auto()
    RECOMPUTE_SCAN = auto()  # recompute the body of a scan
    REORDER_CACHE = auto()  # hold it in the axis order in which attention reads it
    REMOVE_BARRIER = auto()  # let operations run that wait at an optimization barrier
    REPEAT_HEADS_LATER = auto()  # hold each head of the cache once
    SCALE_RESULTS = auto()  # scale the results of products with quantised weights, not the weights
    SCAN_LAYERS = auto()
    SPLIT_CACHE = auto()  # one array for each layer
    SCHEDULE_FOR_MEMORY = auto()  # have XLA schedule operations for memory, not to hide communication

    @property
    def recomputes(self) -> bool:
        """Whether following it recomputes activations."""
        return self in (Aim.RECOMPUTE_ALL_BUT_PRODUCTS, Aim.RECOMPUTE_MODULES, Aim.RECOMPUTE_SCAN)

    @property
    def changes_numbers(self) -> bool:
        """Whether following it changes the results of a step by more than rounding in its own dtypes."""
        return self in (
            Aim.CAST_ACCUMULATORS,
            Aim.CAST_CACHE,
            Aim.CAST_PASSES,
            Aim.CAST_WEIGHTS,
            Aim.CAST_WEIGHTS_AND_CACHE,
            Aim.FACTOR_OPTIMIZER_STATE,
            Aim.NARROW_OPTIMIZER_STATE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A goal and its object. Each aim uses only some of the other fields.

    Attributes:
        positions, names: the arguments to donate, by position, or by name if they have no position; or the role to
            divide.
        axes: axes of the mesh.
        modules: the path of repeated modules, with `*` for their numbers: `layers_*/mlp`.
        dtype: dtype of the arrays, as XLA writes it.
        drops: whether some of the values are dropped at random.
        num_parts: number of parts to compute them in.
        trains: whether the step has a backward pass.
        in_shard_map: whether the step is a function in `shard_map`, which divides arrays itself.
    """

    aim: Aim
    positions: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    modules: str = ""
    dtype: str = ""
    drops: bool = False
    num_parts: int = 1
    trains: bool = True
    in_shard_map: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """A way to follow an intent.

    Attributes:
        code: for the user's own step, with `STEP_NAMES`; `means_to` puts the imports before it. Empty if there is none
            that runs in any step.
        words: what to do; empty if there is code.
        technique: label of the technique that does it to memprof's models; None where there is none.
    """

    code: str = ""
    words: str = ""
    technique: str | None = None

    def __post_init__(self) -> None:
        assert bool(self.code) != bool(self.words)


MeansByAim = Mapping[Aim, Means | Callable[[Intent], Means]]


def means_to(intent: Intent) -> Means:
    """Return the means to follow an intent."""
    found = _means()[intent.aim]
    means = found if isinstance(found, Means) else found(intent)
    return replace(means, code=with_imports(means.code))


def with_imports(code: str) -> str:
    """Return code with the imports that it needs before it."""
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return "\n".join([*(line for name, line in _IMPORTS.items() if name in names), code])


@cache
def _means() -> MeansByAim:
    """Return the means of all families; scanned as in `registry.py`, but without the other plugins."""
    found: dict[Aim, Means | Callable[[Intent], Means]] = {}
    for module in pkgutil.iter_modules(techniques_package.__path__):
        family = importlib.import_module(f"{techniques_package.__name__}.{module.name}")
        own: MeansByAim = getattr(family, "MEANS", {})
        assert not found.keys() & own.keys(), module.name
        found |= own
    return found
