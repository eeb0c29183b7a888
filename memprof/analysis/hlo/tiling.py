"""The storage of arrays on a TPU: in tiles, with each dimension padded to whole tiles.

    padded_shape((100, 130), minor_to_major=(1, 0), tiles=((8, 128),))  # (104, 256)

A layout names tiles, outermost first (`{1,0:T(8,128)(2,1)}`). The first tile divides the last dimensions of the array,
in the layout's order; each further tile divides the dimensions of the tile before it. Each dimension is padded to a
multiple of the tile's dimension. In HBM an array also begins at a multiple of 512 bytes.

Reference: openxla.org/xla/tiled_layout
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Tiles = tuple[tuple[int, ...], ...]


def padded_elements(dimensions: Sequence[int], minor_to_major: Sequence[int], tiles: Tiles) -> int:
    """Return the number of elements of an array with its padding.

    Args:
        dimensions: the dimensions of the array.
        minor_to_major: the numbers of its dimensions in storage order, the contiguous one first.
        tiles: the dimensions of each tile.
    """
    shape = [dimensions[number] for number in reversed(minor_to_major)]
    for tile in tiles:
        shape = [1] * (len(tile) - len(shape)) + shape
        first = len(shape) - len(tile)
        divided = [-(-size // step) for size, step in zip(shape[first:], tile, strict=True)]
        shape = [*shape[:first], *divided, *tile]
    return prod(shape)


def padded_shape(dimensions: Sequence[int], minor_to_major: Sequence[int], tiles: Tiles) -> tuple[int, ...]:
    """Return the dimensions of an array padded to whole tiles, in the array's own order."""
    padded = list(dimensions)
    for number, step in zip(minor_to_major, reversed(tiles[0] if tiles else ()), strict=False):
        padded[number] = -(-padded[number] // step) * step
    return tuple(padded)


def layout_text(dimensions: Sequence[int], minor_to_major: Sequence[int], tiles: Tiles) -> str:
    """Return a layout in XLA's notation, `{0,1:T(8,128)(2,1)}`; empty for an untiled array in row-major order.

    Without tiles, dimensions of size 1 may have any place in the order.
    """
    of_tiles = "".join(f"({','.join(map(str, tile))})" for tile in tiles)
    if not of_tiles:
        order = [number for number in minor_to_major if not 0 <= number < len(dimensions) or dimensions[number] != 1]
        if order == sorted(order, reverse=True):
            return ""
    return f"{{{','.join(map(str, minor_to_major))}{f':T{of_tiles}' if of_tiles else ''}}}"
