"""How a TPU stores an array: in tiles, so that each dimension of a tile is filled up.

    padded_shape((100, 130), minor_to_major=(1, 0), tiles=((8, 128),))  # (104, 256)

A layout names tiles, the outermost first (`{1,0:T(8,128)(2,1)}`): the first divides the last dimensions of the array,
in the layout's order, each other one the dimensions of the tile before it. What a dimension lacks to a multiple of the
tile's is padding. In HBM an array also begins at a multiple of 512 bytes.

Reference: openxla.org/xla/tiled_layout
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Tiles = tuple[tuple[int, ...], ...]


def padded_elements(dimensions: Sequence[int], minor_to_major: Sequence[int], tiles: Tiles) -> int:
    """How many elements an array has room for.

    Args:
        dimensions: of the array.
        minor_to_major: its dimensions in the order in which they are stored, that of neighbours first.
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
    """The dimensions of an array with their padding up to whole tiles, in the array's own order."""
    padded = list(dimensions)
    for number, step in zip(minor_to_major, reversed(tiles[0] if tiles else ()), strict=False):
        padded[number] = -(-padded[number] // step) * step
    return tuple(padded)


def layout_text(dimensions: Sequence[int], minor_to_major: Sequence[int], tiles: Tiles) -> str:
    """A layout as XLA writes it: `{0,1:T(8,128)(2,1)}`; empty of an array without tiles that is stored row by row.

    Without tiles, dimensions of one element may stand anywhere in the order.
    """
    of_tiles = "".join(f"({','.join(map(str, tile))})" for tile in tiles)
    if not of_tiles:
        order = [number for number in minor_to_major if not 0 <= number < len(dimensions) or dimensions[number] != 1]
        if order == sorted(order, reverse=True):
            return ""
    return f"{{{','.join(map(str, minor_to_major))}{f':T{of_tiles}' if of_tiles else ''}}}"
