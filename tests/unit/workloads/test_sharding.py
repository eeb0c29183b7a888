"""Which axis of a mesh divides which array, and how many devices each axis gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from memprof.errors import MemprofError
from memprof.workloads.mesh_axes import split
from memprof.workloads.sharding import Layout
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.with_one_jax
PARAMS = {"layers": {"up": {"kernel": (3, 8, 16), "bias": (3, 16)}}, "norm": {"scale": (6,)}}


class State(SimpleNamespace):
    """A training state as far as a layout asks."""


jax.tree_util.register_pytree_with_keys(
    State,
    lambda state: (
        [(jax.tree_util.GetAttrKey(name), value) for name, value in vars(state).items()],
        tuple(vars(state)),
    ),
    lambda names, values: State(**dict(zip(names, values, strict=True))),
)


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, "float32"), tree, is_leaf=lambda x: type(x) is tuple)


def layout(axes: dict[str, int], **config: Any) -> Layout:
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
    tensor_axes = {"up/kernel": -1, "up/bias": -1}
    return Layout(mesh=mesh, config=TrainConfig(**config), tensor_axes=tensor_axes)  # type: ignore[arg-type]


def specs(axes: dict[str, int], **config: Any) -> list[P]:
    """Of the stacked kernel, its bias and the scale, then of their moments, of row sums and of a counter."""
    state = State(params=shapes(PARAMS), opt_state=({"mu": shapes(PARAMS)}, shapes((3, 12)), shapes(())))
    found = layout(axes, **config).of_state(state)
    in_order = lambda tree: [tree["layers"]["up"]["kernel"], tree["layers"]["up"]["bias"], tree["norm"]["scale"]]  # noqa: E731
    others = list(found.opt_state[1:])
    return [each.spec for each in (*in_order(found.params), *in_order(found.opt_state[0]["mu"]), *others)]


def test_without_a_technique_all_is_on_every_device() -> None:
    assert specs({"devices": 4}) == [P(None, None, None), P(None, None), P(None)] * 2 + [P(None, None), P()]


def test_fsdp_divides_the_longest_axis_that_is_no_loop_over_layers_and_leaves_what_does_not_divide() -> None:
    divided = [P(None, None, "fsdp"), P(None, "fsdp"), P(None)]
    assert specs({"fsdp": 4}, fully_sharded=True) == [*divided, *divided, P(None, "fsdp"), P()]


def test_tp_comes_first_and_fsdp_takes_what_is_whole_yet_or_the_same_axis_again() -> None:
    divided = [P(None, "fsdp", "tp"), P(None, ("tp", "fsdp")), P("fsdp")]
    found = specs({"fsdp": 2, "tp": 4}, fully_sharded=True, tensor_parallel=True)
    assert found == [*divided, *divided, P(None, "fsdp"), P()]


def test_zero1_divides_the_optimizer_state_alone_and_zero2_the_gradients_too() -> None:
    whole = [P(None, None, None), P(None, None), P(None)]
    divided = [P(None, None, "dp"), P(None, "dp"), P(None)]
    for technique, gradient in (("zero1", whole[0]), ("zero2", divided[0])):
        assert specs({"dp": 4}, data_parallel=technique) == [*whole, *divided, P(None, "dp"), P()]
        gradients = layout({"dp": 4}, data_parallel=technique).of_gradients(shapes(PARAMS))
        assert gradients["layers"]["up"]["kernel"].spec == gradient


def test_a_batch_is_divided_by_its_examples_and_its_tokens() -> None:
    found = layout({"dp": 2, "fsdp": 2, "sp": 2}, data_parallel="batch", fully_sharded=True, sequence_parallel=True)
    batch = found.of_batch(shapes({"inputs": (8, 16), "labels": (8,)}))
    assert (batch["inputs"].spec, batch["labels"].spec) == (P(("dp", "fsdp"), "sp"), P(("dp", "fsdp")))


@pytest.mark.parametrize(
    ("num_devices", "axes", "expected"),
    [
        (8, [], {}),
        (8, ["tp"], {"tp": 8}),
        (8, ["tp", "fsdp"], {"fsdp": 4, "tp": 2}),
        (64, ["sp", "dp", "fsdp"], {"dp": 2, "fsdp": 16, "sp": 2}),
        (2, ["dp", "tp"], {"dp": 1, "tp": 2}),
    ],
)
def test_devices_are_split_over_the_axes_that_techniques_use(
    num_devices: int, axes: list[str], expected: dict[str, int]
) -> None:
    assert split(num_devices, axes) == expected
    assert list(split(num_devices, axes)) == list(expected)


def test_devices_that_cannot_be_split_are_one_sentence() -> None:
    with pytest.raises(
        MemprofError, match=r"^--mesh 6 cannot be split over the axes fsdp, sp, tp: give a multiple of 4"
    ):
        split(6, ["tp", "sp", "fsdp"])
