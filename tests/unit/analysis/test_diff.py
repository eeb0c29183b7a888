"""Buffers of two programs, matched."""

from __future__ import annotations

from dataclasses import replace

import diffs_data
from report_builder import buffer, report

from memprof.analysis.comparison import MatchedBuffers, diff
from memprof.analysis.records.categories import Category


def test_buffers_are_matched_by_operation_and_shape_whatever_their_dtype() -> None:
    changed = diffs_data.precision()
    assert changed.buffers[0] == MatchedBuffers(
        op="jit(step)/jvp(Net)/layers_0/dot",
        shape=(1024,),
        dtypes=("f32", "bf16"),
        category=Category.ACTIVATIONS,
        module="layers_0",
        source="",
        num_before=1,
        num_after=1,
        before_bytes=4096,
        after_bytes=2048,
    )
    assert [each.delta_bytes for each in changed.buffers] == [-2048, -2048, -512, 128]


def test_the_changes_add_up_to_that_of_the_live_peak() -> None:
    for make in diffs_data.DIFFS.values():
        changed = make()
        expected = changed.rows[1].live_peak_bytes - changed.rows[0].live_peak_bytes
        assert sum(each.delta_bytes for each in changed.buffers) == expected


def test_several_of_one_operation_are_one_entry_with_their_sum() -> None:
    twice = [buffer((4,), "f32", Category.GRADIENTS, op="step/add")] * 2
    once = diff(report(twice[:1], label="tiny one"), report(twice, label="tiny two")).buffers
    assert [(each.num_before, each.num_after, each.delta_bytes) for each in once] == [(1, 2, 16)]


def test_another_shape_is_another_buffer() -> None:
    before = report([buffer((4,), "f32", Category.GRADIENTS, op="step/add")])
    after = report([buffer((8,), "f32", Category.GRADIENTS, op="step/add")], label="tiny other")
    assert [each.delta_bytes for each in diff(before, after).buffers] == [32, -16]


def test_turned_around_it_has_the_opposite_sign() -> None:
    there = diffs_data.precision()
    back = diff(*reversed(there.rows))
    assert {each.op: each.delta_bytes for each in back.buffers} == {
        each.op: -each.delta_bytes for each in there.buffers
    }


def test_what_has_no_op_name_is_matched_by_its_instruction() -> None:
    nameless = [replace(buffer((4,), "f32", Category.CONSTANTS), name=name) for name in ("copy.1", "copy.2")]
    matched = diff(report(nameless), report(nameless[:1], label="tiny other")).buffers
    assert {each.op: each.delta_bytes for each in matched} == {"copy.1": 0, "copy.2": -16}
