"""Where rules of advice begin and end to speak: each limit from both sides, and each number of their evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_builder import H100, buffer, report

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Loop, Report
from memprof.studies.advice.advice import Advice, ranked
from memprof.studies.advice.advise import bound_bytes, predicted_saving
from memprof.studies.advice.logits import chunked_loss
from memprof.studies.advice.passes import flash_attention, half_precision, huge_buffer, workspace
from memprof.workloads.intents import Aim


def _array(
    shape: tuple[int, ...], category: Category = Category.ACTIVATIONS, *, at: int = 5, dtype: str = "bf16"
) -> LiveBuffer:
    phase = Phase.BACKWARD if category is Category.COTANGENTS else Phase.FORWARD
    return replace(buffer(shape, dtype, category, op="jit(step)/dot_general", phase=phase), start=at, end=12)


_LOGITS = replace(_array((32, 64), at=8), is_of_softmax=True)  # 4,096 bytes
_COTANGENT = _array((32, 64), Category.COTANGENTS, at=10)
_HIDDEN = _array((32, 16), at=5)


def _looped(trip_count: int, *arrays: LiveBuffer) -> Report:
    made = report(arrays)
    loop = Loop(op="jit(step)/while", phase=Phase.FORWARD, trip_count=trip_count)
    return replace(made, program=replace(made.program, loops=(loop,)))


def test_the_evidence_of_a_chunked_loss_counts_the_logits_alone() -> None:
    made = report([_LOGITS, _COTANGENT, _HIDDEN])
    (proposal,) = chunked_loss(made)
    assert proposal.evidence == (
        "2 arrays (8,192 bytes) at the peak have 64 columns; the largest holds 4,096 bytes and is made at"
        " jit(step)/dot_general"
    )
    assert (proposal.intent.aim, proposal.intent.num_parts) == (Aim.CHUNK_LOSS, 8)
    assert predicted_saving(made, proposal) == 8192 - 8192 // 8


def test_a_vector_with_a_number_for_each_class_is_not_of_the_logits() -> None:
    """A bias of 64 classes is as long as the logits are wide."""
    bias = replace(_array((64,)), start=_LOGITS.start)
    (proposal,) = chunked_loss(report([_LOGITS, _COTANGENT, _HIDDEN, bias]))
    assert proposal.evidence.startswith("2 arrays (8,192 bytes) at the peak have 64 columns")


@pytest.mark.parametrize(
    ("made", "speaks"),
    [
        (report([_LOGITS, _COTANGENT, _array((32, 32))]), True),  # twice as wide as whatever else is computed
        (report([_LOGITS, _COTANGENT, _array((32, 33))]), False),
        (report([_LOGITS, _COTANGENT]), False),  # nothing to compare the width with
        (report([_LOGITS, _HIDDEN]), False),  # no gradient of the loss
        (report([replace(_LOGITS, phase=Phase.BACKWARD), _COTANGENT, _HIDDEN]), False),  # no loss
        # The first axis has the length of a loop: the loop makes one row in each turn. The last one says nothing.
        (_looped(32, _LOGITS, _COTANGENT, _HIDDEN), False),
        (_looped(64, _LOGITS, _COTANGENT, _HIDDEN), True),
        (report([replace(_LOGITS, op="jit(step)/while/body/dot_general"), _COTANGENT, _HIDDEN]), False),
        # A later array counts from a tenth of the logits on, which is 409.6 bytes: 384 and 416.
        (report([_LOGITS, _COTANGENT, _HIDDEN, _array((12, 16), at=9)]), True),
        (report([_LOGITS, _COTANGENT, _HIDDEN, _array((13, 16), at=9)]), False),
        (report([_LOGITS, _COTANGENT, _array((32, 16), at=8)]), True),  # made at once
        # Wider arrays of one axis, of integers, of the optimizer and of attention are no logits.
        (report([_LOGITS, _COTANGENT, _HIDDEN, _array((100,))]), True),
        (report([_LOGITS, _COTANGENT, _HIDDEN, _array((2, 100), dtype="s32")]), True),
        (report([_LOGITS, _COTANGENT, _HIDDEN, _array((2, 100), Category.UPDATE_TEMPS)]), True),
        (report([_LOGITS, _COTANGENT, _HIDDEN, replace(_array((2, 100)), is_of_attention=True)]), True),
        (report([_LOGITS, _COTANGENT, _HIDDEN, _array((2, 100))]), False),
    ],
)
def test_logits_are_the_widest_arrays_and_the_last_of_the_forward_pass(made: Report, speaks: bool) -> None:
    assert bool(list(chunked_loss(made))) is speaks


@pytest.mark.parametrize(
    ("capability", "aim"),
    [("7.5", Aim.CHUNK_ATTENTION), ("8.0", Aim.FUSE_ATTENTION), ("9.0", Aim.FUSE_ATTENTION)],
)
def test_a_fused_attention_needs_capability_8(capability: str, aim: Aim) -> None:
    made = report(
        [replace(_array((2, 64, 64)), is_of_attention=True)], target=replace(H100, compute_capability=capability)
    )
    (proposal,) = flash_attention(made)
    assert proposal.intent.aim is aim
    assert predicted_saving(made, proposal) == 2 * 64 * 64 * 2


@pytest.mark.parametrize(("capability", "speaks"), [("7.5", False), ("8.0", True)])
def test_products_are_generated_from_capability_8(capability: str, speaks: bool) -> None:
    scratch = replace(buffer((4096,), "u8", Category.WORKSPACE, op="jit(step)/dot_general"), evidence="__cublas$gemm")
    made = report([scratch, _array((16, 16))], target=replace(H100, compute_capability=capability))
    found = list(workspace(made))
    assert bool(found) is speaks
    assert all(predicted_saving(made, each) == 4096 for each in found)


@pytest.mark.parametrize(
    ("narrow", "speaks"),
    [
        (_array((8, 16)), False),  # 256 bytes: a quarter of the 1,024 in float32
        (_array((8, 15)), True),
        (_array((8, 16), Category.UPDATE_TEMPS), True),  # of no pass
    ],
)
def test_a_step_computes_in_16_bits_if_an_array_of_a_quarter_does(narrow: LiveBuffer, speaks: bool) -> None:
    made = report([_array((16, 16), dtype="f32"), narrow])
    found = list(half_precision(made))
    assert bool(found) is speaks
    assert all(predicted_saving(made, each) == 512 for each in found)


def test_a_step_computes_in_16_bits_if_a_quarter_of_its_bytes_do() -> None:
    """The logits of a contrastive loss are far larger than any activation."""
    narrow = [_array((8, 8)) for _ in range(4)]  # 128 bytes each
    assert not list(half_precision(report([_array((16, 32), dtype="f32"), *narrow])))
    assert list(half_precision(report([_array((16, 32), dtype="f32"), *narrow[1:]])))


def test_half_precision_is_bounded_by_all_float32_at_the_peak() -> None:
    """Gradients and what the loss begins with are in the bound, though they may stay; integers are not."""
    others = (
        _array((64,), Category.GRADIENTS, dtype="f32"),
        replace(_array((64,), Category.COTANGENTS, dtype="f32"), module=""),
        _array((64,), dtype="s32"),
    )
    made = report([_array((16, 16), dtype="f32"), *others])
    (proposal,) = half_precision(made)
    assert predicted_saving(made, proposal) < 1024
    assert bound_bytes(made, proposal) == (1024 + 256 + 256) * 6 // 10


def test_a_kernel_in_16_bits_also_halves_its_operands() -> None:
    probabilities = replace(_array((2, 16, 16), dtype="f32"), is_of_attention=True, module="attend")
    query, other = (replace(_array((2, 16, 4), dtype="f32"), module=name) for name in ("attend/query", "attending"))
    (proposal,) = flash_attention(made := report([probabilities, query, other]))
    assert bound_bytes(made, proposal) == 2048 + 512 * 6 // 10


def test_logits_of_a_contrastive_loss_have_no_chunks_of_tokens() -> None:
    part_of_a_sum = _array((4, 64), dtype="f32")

    def speaks(shape: tuple[int, ...]) -> bool:
        arrays = [replace(each, shape=shape) for each in (_LOGITS, _COTANGENT)]
        return bool(list(chunked_loss(report([*arrays, part_of_a_sum, _HIDDEN]))))

    assert [speaks(shape) for shape in ((64, 64), (2, 32, 64), (65, 64))] == [False, True, True]


@pytest.mark.parametrize(
    ("shape", "others", "num_pieces"),
    [
        ((64, 64), (), 32),  # 32 pieces at most
        ((5, 64), (), 5),
        ((2, 64), (), 2),
        ((1, 64), (), None),  # it cannot be cut
        # A fifth of the footprint is not huge: 1,024 bytes of 5,120, and of 5,118.
        ((8, 64), ((8, 256),), None),
        ((8, 64), ((2047,),), 8),
    ],
)
def test_a_huge_array_is_more_than_a_fifth_and_can_be_cut(
    shape: tuple[int, ...], others: tuple[tuple[int, ...], ...], num_pieces: int | None
) -> None:
    made = report([replace(_array(shape), family=1), *(_array(other, Category.PARAM_COPIES) for other in others)])
    found = list(huge_buffer(made))
    assert [each.intent.num_parts for each in found] == ([] if num_pieces is None else [num_pieces])
    for each in found:
        size_bytes = made.buffers[-1].size_bytes if others else made.buffers[0].size_bytes
        assert predicted_saving(made, each) == size_bytes - size_bytes // (num_pieces or 1)


def test_upper_bounds_are_ordered_by_the_number_that_is_shown() -> None:
    (proposal,) = chunked_loss(report([_LOGITS, _COTANGENT, _HIDDEN]))
    small, large = (Advice(rule="chunked_loss", proposal=proposal, bound_bytes=size) for size in (1024, 2048))
    assert ranked([small, large]) == ranked([large, small]) == (large, small)
