"""What a server holds, added up by hand: weights once, the cache once, its largests programs."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from report_builder import H100, buffer, report

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.reports.formats.terminal import lower
from memprof.reports.json.serving import serving_json
from memprof.reports.options import RenderOptions
from memprof.reports.views.serving import serving_document
from memprof.studies.serving import ServedProgram, ServingPlan, serving_plan

# float32: 4,000 bytes of weights, 1,000 of a draft's; a cache of 64 tokens, 128 bytes each.
_WEIGHTS = ("params", (1000,), Role.PARAMS)
_DRAFT = ("draft", (250,), Role.PARAMS)
_CACHE = ("cache", (64, 32), Role.KV_CACHE)
_CACHE_BYTES = 64 * 128


def _program(
    name: str,
    temp: tuple[int, ...] = (256,),
    arguments: tuple[tuple[str, tuple[int, ...], Role], ...] = (_WEIGHTS, _CACHE),
    constant_bytes: int = 0,
) -> Report:
    held = [
        buffer(shape, "f32", Category(role.value), op=path, phase=Phase.ARGUMENT) for path, shape, role in arguments
    ]
    constants = [buffer((constant_bytes,), "u8", Category.CONSTANTS)] if constant_bytes else []
    made = report([*held, *constants, buffer(temp, "f32", Category.FORWARD_TEMPS)], target=H100)
    leaves = tuple(
        ArgumentLeaf(
            path=path,
            role=role,
            shape=shape,
            dtype="float32",
            size_bytes=4 * prod(shape),
            donated=role is Role.KV_CACHE,
            parameter_number=number,
            position=number,
        )
        for number, (path, shape, role) in enumerate(arguments)
    )
    return replace(made, workload=name, arguments=leaves)


def _plan(*programs: Report) -> ServingPlan:
    return serving_plan(programs, label="engine", cache_tokens=64)


def test_a_server_of_six_programs_is_their_sum_with_what_they_share_once() -> None:
    plan = _plan(
        _program("prefill 128", (512,)),
        _program("prefill 512", (2048,), constant_bytes=24),
        _program("prefill 2048", (8192,)),
        _program("decode", (256,), constant_bytes=8),
        _program("draft", (128,), (_DRAFT, ("draft_cache", (64, 8), Role.KV_CACHE))),
        _program("embed", (64,), (_WEIGHTS,)),
    )
    assert plan.weights_bytes == 4000 + 1000
    assert plan.cache_bytes == _CACHE_BYTES + 64 * 32
    assert plan.cache_bytes_per_token == 128 + 32
    assert plan.constant_bytes == 24 + 8
    assert plan.largest == ServedProgram(
        name="prefill 2048",
        footprint_bytes=4000 + _CACHE_BYTES + 4 * 8192,
        own_bytes=4 * 8192,
        constant_bytes=0,
        copied_cache_bytes=0,
    )
    assert plan.footprint_bytes == 5000 + _CACHE_BYTES + 64 * 32 + 32 + 4 * 8192
    assert plan.pool_bytes is not None
    assert plan.max_tokens == (plan.pool_bytes - 5000 - 32 - 4 * 8192) // 160
    assert [each.name for each in plan.programs][-1] == "embed"


@pytest.mark.parametrize("role", [Role.OTHER_STATE, Role.BATCH])
def test_a_program_that_only_moves_the_cache_shares_it(role: Role) -> None:
    """Inserting a prefix shows no attention: what the array is, another program says."""
    plan = _plan(_program("insert", (16,), (("cache", (64, 32), role),)), _program("decode"))
    assert (plan.cache_bytes, plan.weights_bytes, plan.state_bytes) == (_CACHE_BYTES, 4000, 0)
    assert {each.name: each.own_bytes for each in plan.programs} == {"decode": 4 * 256, "insert": 4 * 16}


def test_copies_of_the_cache_cost_tokens() -> None:
    """One copy of the cache doubles what a token takes."""
    plan = _plan(_program("decode", (32, 64)))
    assert plan.largest.copied_cache_bytes == plan.largest.own_bytes == _CACHE_BYTES
    assert plan.pool_bytes is not None
    assert plan.max_tokens == (plan.pool_bytes - 4000) // (2 * 128)


def test_sequences_are_whole_contexts() -> None:
    plan = replace(_plan(_program("decode")), max_tokens=5000)
    assert [(each.context_len, each.num_sequences) for each in plan.sequences] == [(1024, 4), (2048, 2), (4096, 1)]


def test_the_document_and_the_json_say_the_same() -> None:
    plan = _plan(_program("prefill", (2048,)), _program("decode"))
    text = str(lower(serving_document(plan), RenderOptions(width=100)))
    record = serving_json(plan)
    assert f"{plan.max_tokens:,} tokens of cache fit" in text
    assert "128 bytes of cache for each token" in text
    assert (record.max_tokens, record.weights_bytes, record.cache_bytes_per_token) == (plan.max_tokens, 4000, 128)
    assert [each.name for each in record.programs] == ["prefill", "decode"]


def test_a_server_without_a_cache_or_with_another_number_of_tokens_has_a_sentence() -> None:
    with pytest.raises(MemprofError, match="no cache was found in the programs of engine"):
        _plan(_program("embed", arguments=(_WEIGHTS,)))
    with pytest.raises(MemprofError, match="not a multiple of cache_tokens = 63"):
        serving_plan([_program("decode")], label="engine", cache_tokens=63)
