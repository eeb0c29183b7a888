"""A collective along any axes of any mesh is found to be along these axes, in whatever order its groups are."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.analysis.hlo.hlo_proto import CollectiveDevices, HloProto
from memprof.analysis.hlo.replica_groups import axes_of_groups, axes_of_pairs, device_groups, part_of_axes

pytestmark = pytest.mark.with_one_jax
laws = settings(max_examples=40, derandomize=True)


@st.composite
def meshes(draw: st.DrawFn) -> tuple[dict[str, int], tuple[int, ...]]:
    """A mesh, and the numbers of some of its axes that have several devices."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    taken = [number for number, size in enumerate(sizes) if size > 1 and draw(st.booleans())]
    return {f"axis{number}": size for number, size in enumerate(sizes)}, tuple(taken)


def groups_along(sizes: tuple[int, ...], taken: tuple[int, ...]) -> list[list[int]]:
    """By the definition: devices are together that differ along the axes taken and nowhere else."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(product(*map(range, sizes))):
        groups.setdefault(tuple(at for axis, at in enumerate(place) if axis not in taken), []).append(number)
    return list(groups.values())


@laws
@given(meshes(), st.randoms(use_true_random=False))
def test_groups_in_any_order_are_along_their_axes(mesh: tuple[dict[str, int], tuple[int, ...]], random: object) -> None:
    axes, taken = mesh
    groups = groups_along(tuple(axes.values()), taken)
    for each in [groups, *groups]:
        random.shuffle(each)  # type: ignore[attr-defined]
    along = axes_of_groups(tuple(map(tuple, groups)), axes)
    assert along == tuple(f"axis{number}" for number in taken)
    assert part_of_axes(tuple(map(tuple, groups)), axes, along) is None


@laws
@given(meshes())
def test_xlas_ways_to_write_groups_mean_the_same(mesh: tuple[dict[str, int], tuple[int, ...]]) -> None:
    axes, taken = mesh
    sizes = tuple(axes.values())
    expected = groups_along(sizes, taken)
    others = [number for number in range(len(sizes)) if number not in taken]
    instruction = HloProto().hlo_module.computations.add().instructions.add()
    per_group = prod(sizes[number] for number in taken)
    instruction.iota_groups = CollectiveDevices["IotaGroups"](
        num_devices_per_group=per_group, reshape_dims=sizes, transpose_perm=[*others, *taken]
    ).SerializeToString()
    assert [list(group) for group in device_groups(instruction)] == expected

    instruction.ClearField("iota_groups")
    message = CollectiveDevices["MeshGroups"]()
    for name, size in axes.items():
        message.mesh.axes.add(name=name, size=size)
    for number in taken:
        message.axes.add(axis=number)
    instruction.mesh_groups = message.SerializeToString()
    assert [list(group) for group in device_groups(instruction)] == expected


@laws
@given(meshes(), st.integers(1, 3))
def test_a_ring_goes_along_its_axis(mesh: tuple[dict[str, int], tuple[int, ...]], shift: int) -> None:
    axes, taken = mesh
    for number in taken:
        groups = groups_along(tuple(axes.values()), (number,))
        pairs = tuple((group[at], group[(at + shift) % len(group)]) for group in groups for at in range(len(group)))
        moves = shift % len(groups[0]) > 0
        assert axes_of_pairs(pairs, axes) == ((f"axis{number}",) if moves else ())
