"""Records whose properties decide something in one line: pools, exports, checkpoints, targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_builder import CPU, H100, report
from reports_data import one_buffer

from memprof.analysis.hlo.program import ResultLeaf
from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category
from memprof.analysis.records.checkpoints import Checkpoints, Signature
from memprof.analysis.records.exported import Agreement
from memprof.analysis.records.pool import Allocator, Answer, Pieces, PoolSettings, Verdict

DOT, TANH = (Signature(primitive=name, inputs=(), dimension_numbers="None") for name in ("dot_general", "tanh"))


def _verdict(answer: Answer, pool_bytes: int | None, short_bytes: int) -> Verdict:
    return Verdict(answer=answer, pool_bytes=pool_bytes, mem_fraction=None, short_bytes=short_bytes, sentence="")


@pytest.mark.parametrize(
    ("verdict", "needed_bytes", "fits"),
    [
        (_verdict(Answer.FITS, 100, 0), None, True),
        (_verdict(Answer.FITS_WITH, 100, 7), 107, False),
        (_verdict(Answer.DOES_NOT_FIT, 100, 7), 107, False),
        (_verdict(Answer.DOES_NOT_FIT, 0, 7), 7, False),
        (_verdict(Answer.UNKNOWN, None, 0), None, None),
    ],
)
def test_a_step_that_does_not_fit_needs_what_its_pool_lacks(
    verdict: Verdict, needed_bytes: int | None, fits: bool | None
) -> None:
    assert (verdict.needed_bytes, verdict.fits) == (needed_bytes, fits)


def test_the_pieces_add_up_to_the_footprint() -> None:
    pieces = Pieces(held=(1, 2), replaced=(10,), batch=(100,), results=(1000, 2000), temps=(10000,))
    assert pieces.footprint_bytes == 13113


def test_allocators_differ_in_their_limit_and_in_whether_requests_are_contiguous() -> None:
    assert {each.value: (each.is_capped, each.has_pieces) for each in Allocator} == {
        "bfc": (True, True),
        "platform": (False, False),
        "cuda_async": (False, False),
        "vmm": (True, False),
        "address": (True, False),
    }


def test_a_fraction_is_the_decimal_number_that_the_user_wrote() -> None:
    assert PoolSettings().fraction == PoolSettings(mem_fraction=0.75).fraction
    assert PoolSettings(mem_fraction=0.1).fraction * 10 == 1


@pytest.mark.parametrize(("difference", "is_equal"), [(0.0, True), (0.01, True), (0.011, False)])
def test_an_exported_model_agrees_up_to_its_tolerance(difference: float, is_equal: bool) -> None:
    assert Agreement(engine="ort", difference=difference, tolerance=0.01).is_equal is is_equal


def test_the_first_blocks_keep_other_results_than_the_rest() -> None:
    kept, by_rest = frozenset({DOT, TANH}), frozenset({DOT})
    assert [Checkpoints(kept=kept).kept_by(number) for number in (0, 9)] == [kept, kept]
    some = Checkpoints(kept=kept, num_first=2, kept_by_rest=by_rest)
    assert [some.kept_by(number) for number in range(4)] == [kept, kept, by_rest, by_rest]
    assert Checkpoints(kept=kept, num_first=1).kept_by(1) is None
    assert Checkpoints(kept=kept, num_first=0).kept_by(0) is None


@pytest.mark.parametrize(
    ("target", "capability"),
    [
        (H100, (9, 0)),
        (replace(H100, compute_capability="12.1"), (12, 1)),
        (replace(H100, compute_capability="gfx942"), None),
        (replace(H100, compute_capability="9.0a"), None),
        (replace(H100, compute_capability=None), None),
        (CPU, None),
    ],
)
def test_the_compute_capability_as_numbers(target: Target, capability: tuple[int, int] | None) -> None:
    assert target.cuda_capability == capability


def test_programs_get_the_memory_that_is_not_reserved() -> None:
    card = replace(H100, memory_bytes=100, reserved_bytes=30)
    assert (card.usable_bytes, card.with_memory(50).usable_bytes, card.with_less(10).usable_bytes) == (70, 50, 60)
    assert replace(card, reserved_bytes=101).usable_bytes == 0
    assert (CPU.usable_bytes, CPU.with_less(10)) == (None, CPU)


def test_a_report_of_sums_has_the_sums_of_both_plans() -> None:
    whole = one_buffer()
    sums = replace(whole, without_limit=whole).sums()
    assert (sums.footprint_bytes, sums.categories) == (whole.footprint_bytes, whole.categories)
    assert sums.without_limit == whole.sums()
    assert whole.buffers
    assert not sums.buffers
    assert whole.sums().without_limit is None
    assert whole.unpressed is whole
    assert sums.unpressed is sums.without_limit


def test_padding_counts_where_buffers_are_live_at_the_peak() -> None:
    made = report()
    buffers = [replace(one_buffer().buffers[0], padding_bytes=size) for size in (3, 4)]
    assert replace(made, buffers=tuple(buffers)).padding_bytes == 7
    assert made.categories[Category.FRAGMENTATION] == 0


@pytest.mark.parametrize(
    ("dtype", "dimensions", "size_bytes"),
    [
        ("f32", (2, 3), 24),
        ("bf16", (3,), 6),
        ("pred", (8,), 8),
        ("pred", (), 1),
        ("u8", (7,), 7),
        ("s4", (3,), 2),  # two to a byte
        ("f8e4m3fn", (5,), 5),
        ("c64", (2,), 16),
        ("f64", (0, 9), 0),
        ("token", (), 0),
    ],
)
def test_an_array_has_the_bytes_of_its_elements(dtype: str, dimensions: tuple[int, ...], size_bytes: int) -> None:
    leaf = ResultLeaf(shape_index=(), dtype=dtype, dimensions=dimensions)
    assert leaf.size_bytes == size_bytes


def test_what_a_larger_batch_leaves_as_it_is() -> None:
    """What the caller holds from step to step, except data and caches; what is made of parameters alone; results."""
    assert {each.value for each in Category if each.is_fixed} == {
        *("params", "optimizer_state", "other_state"),
        *("gradients", "param_copies", "outputs"),
    }
