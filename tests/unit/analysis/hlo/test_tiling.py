"""What padding a layout in tiles asks for. The sizes are those of libtpu's buffer assignments (0.0.42 and 0.0.50)."""

from __future__ import annotations

from typing import Any

import pytest
from hlo import Step
from hlo_nodes import f32

from memprof.analysis.hlo.hlo_proto import ShapeProto
from memprof.analysis.hlo.program_decoding import _shape
from memprof.analysis.hlo.tiling import layout_text, padded_elements, padded_shape
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.errors import InternalError

pytestmark = pytest.mark.with_one_jax

_HBM_ALIGNMENT = 512
F32, BF16, S8, PRED = 4, 2, 1, 1


@pytest.mark.parametrize(
    ("dimensions", "order", "tiles", "element_bytes", "expected_bytes"),
    [
        ((), (), (), F32, 512),
        ((), (), ((128,),), F32, 512),
        ((), (), ((8, 128),), F32, 8 * 128 * 4),
        ((1,), (0,), ((128,),), F32, 512),
        ((130,), (0,), ((8, 128),), F32, 8 * 256 * 4),
        ((64,), (0,), ((128,),), F32, 512),
        ((1000,), (0,), ((1024,),), F32, 4096),
        ((100, 130), (1, 0), ((8, 128),), F32, 104 * 256 * 4),
        ((100, 130), (0, 1), ((8, 128),), F32, 128 * 136 * 4),  # 69,632 for 52,000: columns lie together
        ((130, 77), (0, 1), ((8, 128),), F32, 80 * 256 * 4),
        ((5, 5, 5), (2, 1, 0), ((8, 128),), F32, 5 * 8 * 128 * 4),
        ((4, 100), (1, 0), ((4, 128),), F32, 4 * 128 * 4),
        ((2, 3, 2, 7), (3, 2, 1, 0), ((2, 128),), F32, 2 * 3 * 2 * 128 * 4),
        ((300,), (0,), ((256,), (128,), (2, 1)), BF16, 512 * 2),
        ((1000, 10), (0, 1), ((8, 128), (2, 1)), BF16, 1024 * 16 * 2),  # 32,768
        ((12, 64, 1), (2, 1, 0), ((8, 128), (2, 1)), BF16, 12 * 64 * 128 * 2),
        ((3, 129), (1, 0), ((2, 128), (2, 1)), BF16, 4 * 256 * 2),
        ((33, 129), (1, 0), ((8, 128), (4, 1)), S8, 40 * 256),
        ((33, 129), (1, 0), ((32, 128), (4, 1)), S8, 64 * 256),
        ((1,), (0,), ((512,),), PRED, 512),
        ((2, 3, 4, 100), (3, 2, 1, 0), ((8, 128), (4, 1)), S8, 2 * 3 * 8 * 128),
    ],
)
def test_an_array_is_filled_up_to_whole_tiles(
    dimensions: tuple[int, ...],
    order: tuple[int, ...],
    tiles: tuple[tuple[int, ...], ...],
    element_bytes: int,
    expected_bytes: int,
) -> None:
    size_bytes = padded_elements(dimensions, order, tiles) * element_bytes
    assert -(-size_bytes // _HBM_ALIGNMENT) * _HBM_ALIGNMENT == expected_bytes


def test_dimensions_are_padded_in_the_order_of_the_array() -> None:
    assert padded_shape((100, 130), (1, 0), ((8, 128),)) == (104, 256)
    assert padded_shape((130, 77), (0, 1), ((8, 128),)) == (256, 80)
    assert padded_shape((7, 100, 130), (2, 1, 0), ((8, 128), (2, 1))) == (7, 104, 256)
    assert padded_shape((100, 130), (), ()) == (100, 130)


def _f32(*dimensions: int, order: tuple[int, ...], tiles: tuple[int, ...]) -> Any:
    shape = ShapeProto(element_type=11, dimensions=dimensions)
    shape.layout.minor_to_major.extend(order)
    shape.layout.tiles.add(dimensions=tiles)
    return shape


def test_a_decoded_shape_has_its_padding_and_impossible_tiles_are_damage() -> None:
    (leaf,) = _shape(_f32(100, 130, order=(1, 0), tiles=(8, 128))).leaves
    assert (leaf.padded, leaf.size_bytes) == ((104, 256), 52_000)
    (leaf,) = _shape(_f32(104, 256, order=(1, 0), tiles=(8, 128))).leaves
    assert leaf.padded == ()
    for order, tiles in (((1, 1), (8, 128)), ((0,), (8, 128)), ((1, 0), (0, 128)), ((1, 0), (8, 1 << 40))):
        with pytest.raises(InternalError, match="impossible tiles"):
            _shape(_f32(100, 130, order=order, tiles=tiles))


def test_padding_is_what_a_buffer_holds_beyond_its_elements() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    step.result(step.op("out", "negate", f32(4), [x]))
    report = analyze(step.capture())
    assert (report.padding_bytes, {buffer.padding_bytes for buffer in report.buffers}) == (0, {0})
    assert report.memory_spaces == {"hbm": report.footprint_bytes}


@pytest.mark.parametrize(
    ("dimensions", "order", "tiles", "text"),
    [
        ((), (), (), ""),
        ((2, 3), (1, 0), (), ""),
        ((2, 3), (0, 1), (), "{0,1}"),
        ((2, 1, 3), (1, 2, 0), (), ""),  # a dimension of one element may stand anywhere
        ((2, 1, 3), (0, 1, 2), (), "{0,1,2}"),
        ((2, 3), (1, 0), ((8, 128), (2, 1)), "{1,0:T(8,128)(2,1)}"),
        ((), (), ((128,),), "{:T(128)}"),
    ],
)
def test_a_layout_is_written_as_xla_does_and_not_at_all_row_by_row(
    dimensions: tuple[int, ...], order: tuple[int, ...], tiles: Any, text: str
) -> None:
    assert layout_text(dimensions, order, tiles) == text
