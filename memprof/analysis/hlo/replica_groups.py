"""The devices that a collective connects, in XLA's encodings, and the axes of the mesh between them.

XLA numbers the devices of a program in the order of the mesh from JAX: the last axis varies fastest, regardless of the
physical devices. A collective names groups of these numbers in one of three forms: lists, a reshaped and transposed
array of all numbers, or axes of a mesh that XLA defines. A permute names pairs of source and target
(xla/hlo/ir/replica_group.h; jaxlib 0.10.2 to 0.12).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise, product
from math import prod
from typing import Any

from google.protobuf.message import DecodeError

from memprof.analysis.hlo.hlo_proto import CollectiveDevices
from memprof.errors import InternalError

Groups = tuple[tuple[int, ...], ...]
_MAX_DEVICES = 1 << 20  # per program; a file with more was made to exhaust memory


def device_groups(message: Any) -> Groups:
    """Return the groups of a collective, or the pairs of a permute; empty means one group of all devices.

    Raises:
        InternalError: they are inconsistent.
    """
    return _decoded(
        tuple(message.replica_groups),
        tuple(message.source_target_pairs),
        message.device_list,
        message.iota_groups,
        message.mesh_groups,
    )


def axes_of_groups(groups: Groups, axes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return the mesh axes along which the devices of each group vary, in the mesh's order.

    A group may hold only a part of the devices along these axes (see `part_of_axes`), but all groups must have the same
    size and together cover all devices; otherwise the result is None. It is empty if each device is a separate group.

    Args:
        axes: the size of each axis by its name, in the mesh's order.
    """
    return _axes_of_groups(groups, tuple(axes.items()))


def part_of_axes(groups: Groups, axes: Mapping[str, int], along: Iterable[str]) -> int | None:
    """Return the number of devices in a group if it is only a part of those along some axes; None if it is all.

    XLA splits an axis if an array with fewer pieces is sharded over it, or if a sharded array is reshaped.
    """
    size = len(groups[0]) if groups else None
    return None if size == prod(axes[axis] for axis in along) else size


def axes_of_pairs(pairs: Groups, axes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Return the axes along which source and target differ, in the mesh's order; None if the mesh lacks a device."""
    if not _are_devices(pairs, prod(axes.values())):
        return None
    places = [(_place(source, axes.values()), _place(target, axes.values())) for source, target in pairs]
    return tuple(
        name for number, name in enumerate(axes) if any(source[number] != target[number] for source, target in places)
    )


@lru_cache(maxsize=4096)
def _axes_of_groups(groups: Groups, axes: tuple[tuple[str, int], ...]) -> tuple[str, ...] | None:
    sizes = [size for _, size in axes]
    num_devices = prod(sizes)
    groups = groups or (tuple(range(num_devices)),)
    if sorted(chain(*groups)) != list(range(num_devices)):
        return None
    found = {(len(group), _varying([_place(number, sizes) for number in group])) for group in groups}
    if len(found) > 1:
        return None
    [(_, varying)] = found
    return tuple(axes[number][0] for number in varying)


def _varying(places: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the axes along which places differ."""
    return tuple(number for number, of_axis in enumerate(zip(*places, strict=True)) if len(set(of_axis)) > 1)


def _place(number: int, sizes: Any) -> tuple[int, ...]:
    """Return the coordinates of a device on the mesh."""
    place = []
    for size in reversed(tuple(sizes)):
        number, on_axis = divmod(number, size)
        place.append(on_axis)
    return tuple(reversed(place))


def _are_devices(groups: Groups, num_devices: int) -> bool:
    return all(0 <= number < num_devices for number in chain(*groups))


@lru_cache(maxsize=4096)
def _decoded(
    lists: tuple[bytes, ...], pairs: tuple[bytes, ...], device_list: bytes, iota: bytes, mesh: bytes
) -> Groups:
    read = CollectiveDevices
    try:
        if pairs:
            found = [read["SourceTarget"].FromString(each) for each in pairs]
            return tuple((each.source, each.target) for each in found)
        if iota:
            return _of_iota(read["IotaGroups"].FromString(iota))
        if mesh:
            return _of_mesh(read["MeshGroups"].FromString(mesh))
        if device_list:
            found_list = read["DeviceList"].FromString(device_list)
            if found_list.HasField("iota_groups"):
                return _of_iota(found_list.iota_groups)
            return tuple(tuple(group.replica_ids) for group in found_list.replica_groups)
        return tuple(tuple(read["ReplicaGroup"].FromString(each).replica_ids) for each in lists)
    except DecodeError as error:
        raise _broken() from error


def _of_iota(message: Any) -> Groups:
    return _cut(_iota(message), message.num_devices_per_group)


def _iota(message: Any) -> list[int]:
    """Return all device numbers, reshaped and transposed."""
    sizes, order = tuple(message.reshape_dims), tuple(message.transpose_perm)
    return _transposed(_sized(sizes), sizes, order or tuple(range(len(sizes))))


def _of_mesh(message: Any) -> Groups:
    """Decode groups given as axes of a mesh. An axis used in part is split at the ends of its parts."""
    cuts = [{1, axis.size} for axis in message.mesh.axes]
    taken = []
    for each in message.axes:
        if not 0 <= each.axis < len(cuts):
            raise _broken()
        begin, end = 1, message.mesh.axes[each.axis].size
        if each.HasField("part"):
            begin, end = each.part.pre_size, each.part.pre_size * each.part.size
        cuts[each.axis] |= {begin, end}
        taken.append((each.axis, begin, end))
    sizes: list[int] = []
    grouped: list[int] = []
    for axis, of_axis in enumerate(cuts):
        for before, after in pairwise(sorted(of_axis)):
            if before < 1 or after % before:
                raise _broken()
            if any(each == axis and begin <= before < end for each, begin, end in taken):
                grouped.append(len(sizes))
            sizes.append(after // before)
    ids: Sequence[int] = tuple(message.mesh.device_ids) or _sized(sizes)
    if message.mesh.HasField("iota_ids"):
        ids = _iota(message.mesh.iota_ids)
    if len(ids) != prod(sizes):
        raise _broken()
    order = (*(number for number in range(len(sizes)) if number not in grouped), *grouped)
    return _cut(_transposed(ids, sizes, order), prod(sizes[number] for number in grouped))


def _sized(sizes: Sequence[int]) -> Sequence[int]:
    """Return all device numbers in order."""
    if min(sizes, default=1) < 1 or prod(sizes) > _MAX_DEVICES:
        raise _broken()
    return range(prod(sizes))


def _transposed(ids: Sequence[int], sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Transpose an array of the given sizes, and return it flat."""
    if sorted(order) != list(range(len(sizes))):
        raise _broken()
    strides = list(accumulate(reversed(sizes), lambda stride, size: stride * size, initial=1))[-2::-1]
    steps = (range(0, sizes[axis] * strides[axis], strides[axis]) for axis in order)
    return [ids[sum(offsets)] for offsets in product(*steps)]


def _cut(ids: Sequence[int], size: int) -> Groups:
    if size < 1 or len(ids) % size:
        raise _broken()
    return tuple(tuple(ids[start : start + size]) for start in range(0, len(ids), size))


def _broken() -> InternalError:
    return InternalError("the compiled program is inconsistent: a collective has impossible device groups")
