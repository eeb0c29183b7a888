"""What one device of a mesh holds, by hand: a mesh of 4 by 2."""

from __future__ import annotations

from dataclasses import replace

from report_builder import H100, report

from memprof.analysis.mesh.shares import ReplicatedOver, Share, largest_whole, replicated_over, shares_by_role
from memprof.analysis.records.capture import ArgumentLeaf, Topology
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Report

MESH = replace(H100, topology=Topology(num_devices=8, axes={"fsdp": 4, "tp": 2}))


def _report(*leaves: tuple[str, Role, int, tuple[str, ...] | None, int]) -> Report:
    """Of leaves by path, role, number of float32 elements, the axes that they are divided over, and device bytes."""
    arguments = tuple(
        ArgumentLeaf(
            path=path,
            role=role,
            shape=(size,),
            dtype="float32",
            size_bytes=4 * size,
            donated=False,
            parameter_number=number,
            mesh_axes=axes,
        )
        for number, (path, role, size, axes, _) in enumerate(leaves)
    )
    parameter_bytes = {number: held for number, (*_, held) in enumerate(leaves)}
    return replace(report(target=MESH, arguments=arguments), parameter_bytes=parameter_bytes)


FOUND = _report(
    ("params['w']", Role.PARAMS, 64, ("fsdp", "tp"), 32),  # 256 bytes, an eighth of it here
    ("params['norm']", Role.PARAMS, 16, (), 64),  # 64 bytes, all of it here
    ("opt.mu['w']", Role.OPTIMIZER_STATE, 64, ("tp",), 128),  # 256 bytes, half of it here
    ("opt.count", Role.OPTIMIZER_STATE, 1, (), 4),  # one number cannot be divided
    ("x", Role.BATCH, 32, None, 32),  # XLA chose: 128 bytes, a quarter of it here
)


def test_the_share_of_each_role_is_the_sum_of_its_leaves() -> None:
    assert shares_by_role(FOUND) == (
        Share(name="params", whole_bytes=256 + 64, device_bytes=32 + 64),
        Share(name="optimizer_state", whole_bytes=256 + 4, device_bytes=128 + 4),
        Share(name="batch", whole_bytes=128, device_bytes=32),
    )


def test_what_an_axis_leaves_whole_is_counted_once_and_would_shrink_by_its_size() -> None:
    assert replicated_over(FOUND) == (
        # the norm and the moment; the count is one number, and where XLA chose nothing is known
        ReplicatedOver(axis="fsdp", num_devices=4, device_bytes=64 + 128, largest="opt.mu['w']"),
        ReplicatedOver(axis="tp", num_devices=2, device_bytes=64, largest="params['norm']"),
    )
    assert [each.saving_bytes for each in replicated_over(FOUND)] == [144, 32]  # 3/4 of 192, 1/2 of 64


def test_the_largest_that_every_device_holds_whole() -> None:
    assert largest_whole(FOUND, top=5) == (Share(name="params['norm']", whole_bytes=64, device_bytes=64),)


def test_an_argument_that_jit_dropped_is_on_no_device() -> None:
    dropped = replace(FOUND.arguments[0], parameter_number=None)
    assert shares_by_role(replace(FOUND, arguments=(dropped,))) == ()
