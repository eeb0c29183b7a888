"""`TrainSpec`, the record that lets users try techniques on their own loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from memprof.errors import MemprofError
from memprof.sources.jax.own_attributes import is_equinox_module
from memprof.sources.jax.tracing.step_checks import check_callable, shown
from memprof.workloads.losses import Metrics
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """A loss to train with. memprof builds the step around it, and so can change the step.

    Attributes:
        loss_fn: `loss_fn(params, batch)` or `loss_fn(params, batch, rng)`. It returns the mean loss over the batch, a
            scalar, or a pair of that loss and any other value.
        params: a pytree of arrays or of `jax.ShapeDtypeStruct`, possibly with Equinox modules or flax.struct
            dataclasses, or one array. Its floating-point leaves are trained; all others stay unchanged.
        optimizer: any optax optimizer.
        batch: a pytree of arrays or of `jax.ShapeDtypeStruct` whose first axis is the example.
    """

    loss_fn: Callable[..., Any]
    params: Any
    optimizer: optax.GradientTransformation
    batch: Any

    def __post_init__(self) -> None:
        """Raise `MemprofError` if the loss is not a function, or the optimizer is not an optax optimizer."""
        check_callable(self.loss_fn)
        if not (callable(getattr(self.optimizer, "init", None)) and callable(getattr(self.optimizer, "update", None))):
            raise MemprofError(
                f"the optimizer is {shown(self.optimizer)}, but an optax optimizer was expected, for example "
                "optax.adamw(1e-3)"
            )


@dataclass(frozen=True, slots=True)
class UserConfig:
    """The part of a model's configuration that techniques need and a loss provides."""

    batch_size: int


class UserModel:
    """A user's loss as a model that the trainer can train (see `memprof.workloads.model.Model`)."""

    tensor_axes: Mapping[str, int] = MappingProxyType({})

    def __init__(self, spec: TrainSpec, config: TrainConfig) -> None:
        self._spec = spec
        self._config = config
        self._takes_rng = _num_positional(spec.loss_fn) >= 3
        self._fixed = _without_trained(spec.params)
        self.batch_shapes = jax.tree.map(_shape_of, spec.batch)
        self.apply_fn = spec.loss_fn

    @property
    def num_examples(self) -> int:
        return num_examples(self.batch_shapes)

    def init_params(self, rng: jax.Array) -> Any:
        """Return the trained leaves, with their given values or shapes, in the dtype of the configuration.

        The tree is like that of the parameters, with None for all other leaves.
        """
        dtype = None if self._config.param_dtype == "float32" else self._config.param_dtype
        return _map_trained(self._spec.params, lambda leaf: _concrete(leaf, dtype))

    def sample(self, rng: np.random.Generator) -> Any:
        """Return the batch as given; if only its shapes are known, normal floats, and zeros for other dtypes."""
        return jax.tree.map(lambda leaf: _sampled(leaf, rng), self._spec.batch)

    def metrics(self, params: Any, batch: Any, rng: jax.Array) -> Metrics:
        """Return the loss of a batch, or of a part of one, as a (sum, count) pair of float32."""
        if self._config.compute_dtype != "float32":
            dtype = jnp.dtype(self._config.compute_dtype)
            params, batch = _cast(params, dtype), _cast(batch, dtype)
        loss_fn = self._checkpointed(self._loss)
        result = loss_fn(params, batch, rng) if self._takes_rng else loss_fn(params, batch)
        loss = result[0] if isinstance(result, tuple) else result
        if jnp.shape(loss) != ():
            raise MemprofError(
                f"loss_fn returned an array of shape {jnp.shape(loss)}; it must return the mean loss, a scalar, or a"
                " pair that begins with it"
            )
        count = jnp.float32(num_examples(batch))
        return {"loss": (loss.astype(jnp.float32) * count, count)}

    def _loss(self, trained: Any, *others: Any) -> Any:
        """Return the user's loss, called with parameters in the user's structure."""
        params = jax.tree.map(
            lambda leaf, fixed: fixed if leaf is None else leaf, trained, self._fixed, is_leaf=lambda leaf: leaf is None
        )
        return self._spec.loss_fn(params, *others)

    def _checkpointed(self, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
        policies = jax.checkpoint_policies
        if self._config.remat_modules == "none":
            return loss_fn
        policy = {
            "nothing": None,
            "products": policies.dots_with_no_batch_dims_saveable,
            "offload": policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
        }[self._config.remat_policy]
        checkpointed: Callable[..., Any] = jax.checkpoint(loss_fn, policy=policy)
        return checkpointed


def num_examples(batch: Any) -> int:
    """Return the length of the first axis of a batch.

    Raises:
        MemprofError: its arrays have no common first axis.
    """
    lengths = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1 or lengths == {()}:
        raise MemprofError(
            "the arrays of the batch have no common first axis to count the examples: their shapes are"
            f" {', '.join(str(tuple(jnp.shape(leaf))) for leaf in jax.tree.leaves(batch)) or 'none'}"
        )
    return int(lengths.pop()[0])


def _num_positional(fn: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        parameter
        for parameter in inspect.signature(fn).parameters.values()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]
    return len(required)


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.canonicalize_dtype(jnp.result_type(leaf)))


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _is_trained(leaf: Any, *, is_static: bool = False) -> bool:
    """Whether a leaf is a floating-point array, or a number outside an Equinox module (inside, numbers are static)."""
    if not hasattr(leaf, "dtype"):
        return isinstance(leaf, (float, complex)) and not is_static
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _map_leaves(params: Any, change: Callable[[Any, bool], Any]) -> Any:
    """Change each leaf. Args: change: takes a leaf, and whether the leaf is in an Equinox module."""

    def change_node(node: Any) -> Any:
        if not is_equinox_module(node):
            return change(node, False)
        return jax.tree.map(lambda leaf: change(leaf, True), node)

    return jax.tree.map(change_node, params, is_leaf=is_equinox_module)


def _map_trained(params: Any, change: Callable[[Any], Any]) -> Any:
    """Change each trained leaf; return None for all others."""
    return _map_leaves(params, lambda leaf, is_static: change(leaf) if _is_trained(leaf, is_static=is_static) else None)


def _without_trained(params: Any) -> Any:
    """Return the untrained leaves: zeros if only shapes are known; None for trained leaves."""

    def fixed(leaf: Any, is_static: bool) -> Any:
        if _is_trained(leaf, is_static=is_static):
            return None
        return jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return _map_leaves(params, fixed)


def _concrete(leaf: Any, dtype: str | None) -> jax.Array:
    """Return a floating-point leaf as an array."""
    array = jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else jnp.asarray(leaf)
    return array.astype(dtype) if dtype is not None and _is_float(array) else array


def _sampled(leaf: Any, rng: np.random.Generator) -> np.ndarray:
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return np.asarray(leaf)
    if _is_float(leaf):
        return rng.standard_normal(leaf.shape).astype(leaf.dtype)
    return np.zeros(leaf.shape, leaf.dtype)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if _is_float(leaf) else leaf, tree)
