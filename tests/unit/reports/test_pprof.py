"""pprof, read by classes that are made here from the public `profile.proto`, with all its fields."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from report_builder import buffer, report
from stacked_report import stacked
from transformer_report import transformer

from memprof.analysis.comparison import compare
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.reports.formats.pprof import FORMAT
from memprof.reports.options import RenderOptions

pytestmark = pytest.mark.with_one_jax

# github.com/google/pprof, proto/profile.proto: `type name = number`, repeated where it begins with *.
_PROTO = """
Profile: *ValueType sample_type 1, *Sample sample 2, *Mapping mapping 3, *Location location 4, *Function function 5,
  *string string_table 6, int64 drop_frames 7, int64 keep_frames 8, int64 time_nanos 9, int64 duration_nanos 10,
  ValueType period_type 11, int64 period 12, *int64 comment 13, int64 default_sample_type 14, int64 doc_url 15
ValueType: int64 type 1, int64 unit 2
Sample: *uint64 location_id 1, *int64 value 2, *Label label 3
Label: int64 key 1, int64 str 2, int64 num 3, int64 num_unit 4
Mapping: uint64 id 1, uint64 memory_start 2, uint64 memory_limit 3, uint64 file_offset 4, int64 filename 5,
  int64 build_id 6, bool has_functions 7, bool has_filenames 8, bool has_line_numbers 9, bool has_inline_frames 10
Location: uint64 id 1, uint64 mapping_id 2, uint64 address 3, *Line line 4, bool is_folded 5
Line: uint64 function_id 1, int64 line 2, int64 column 3
Function: uint64 id 1, int64 name 2, int64 system_name 3, int64 filename 4, int64 start_line 5
"""


def _profile_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for declaration in _PROTO.strip().replace("\n  ", " ").splitlines():
        name, _, fields = declaration.partition(": ")
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            kind, field_name, number = field.split()
            scalar = kind.lstrip("*")
            added = message.field.add(name=field_name, number=int(number), label=3 if kind.startswith("*") else 1)
            if scalar[0].isupper():
                added.type, added.type_name = added.TYPE_MESSAGE, f".perftools.profiles.{scalar}"
            else:
                added.type = getattr(added, f"TYPE_{scalar.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


def _read(report: Report) -> Any:
    return _parsed(FORMAT.render_report(report, RenderOptions()))


def _parsed(rendered: str | bytes) -> Any:
    assert isinstance(rendered, bytes)
    return _profile_class().FromString(gzip.decompress(rendered))


def _stacks(profile: Any) -> list[list[tuple[str, str, int]]]:
    """The calls of each sample, outermost first: function, file and line."""
    texts = profile.string_table
    functions = {each.id: (texts[each.name], texts[each.filename]) for each in profile.function}
    calls = {each.id: (*functions[each.line[0].function_id], each.line[0].line) for each in profile.location}
    return [[calls[number] for number in reversed(sample.location_id)] for sample in profile.sample]


@pytest.mark.parametrize("make", [transformer, stacked])
def test_sums_are_those_of_the_live_peak(make: Any) -> None:
    made = make()
    profile = _read(made)
    texts = profile.string_table
    assert texts[0] == ""
    types = [(texts[each.type], texts[each.unit]) for each in profile.sample_type]
    sums = {name: sum(sample.value[n] for sample in profile.sample) for n, (name, _) in enumerate(types)}
    assert sums.pop("allocations") == len(made.buffers)
    assert sums.pop("space") == sum(each.size_bytes for each in made.buffers)
    by_category: dict[str, int] = {}
    for each in made.buffers:
        by_category[each.category.value] = by_category.get(each.category.value, 0) + each.size_bytes
    assert sums == by_category
    assert types[0] == ("allocations", "count")
    assert {unit for _, unit in types[1:]} == {"bytes"}
    assert texts[profile.default_sample_type] == "space"


def test_a_sample_has_its_stack_innermost_first_and_labels() -> None:
    profile = _read(stacked())
    texts = profile.string_table
    sample = profile.sample[0]
    calls = _stacks(profile)[0]
    assert calls[-1] == ("dot", "", 0)
    assert calls[0] == ("step", "/home/me/project/train.py", 30)
    labels = {texts[each.key]: texts[each.str] for each in sample.label}
    assert labels["category"] == "activations"
    assert labels["module"] == "layers_0/attention"
    assert labels["array"] == "f32[524288]"
    known = {each.id for each in profile.location}
    assert all(set(each.location_id) <= known for each in profile.sample)


def test_of_several_reports_each_has_its_name_around_its_stacks() -> None:
    one, two = stacked(), replace(transformer(), label="other")
    both = _parsed(FORMAT.render_comparison(compare([one, two], baseline=one.label), RenderOptions()))
    alone = [*_stacks(_read(one)), *_stacks(_read(two))]
    labels = [one.label] * len(one.buffers) + ["other"] * len(two.buffers)
    assert _stacks(both) == [[(label, "", 0), *stack] for label, stack in zip(labels, alone, strict=True)]
    about = [both.string_table[number] for number in both.comment]
    assert [text.partition(": ")[2] for text in about] == [
        f"live peak of {one.label} on {one.target.name}",
        f"live peak of other on {two.target.name}",
    ]
    assert len({(each.name, each.filename) for each in both.function}) == len(both.function)


def test_a_buffer_without_a_stack_lies_in_its_modules() -> None:
    inner = buffer((4,), "f32", Category.ACTIVATIONS, module="layers_0/mlp", op="jit(step)/layers_0/mlp/dot")
    nameless = replace(buffer((4,), "f32", Category.BATCH), name="")
    assert _stacks(_read(report([inner, nameless]))) == [
        [("layers_0", "", 0), ("mlp", "", 0), ("dot", "", 0)],
        [("(no name)", "", 0)],
    ]
