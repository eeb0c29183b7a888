"""The document of a serving plan: its total, its programs, and the sequences that fit."""

from __future__ import annotations

from memprof.analysis.records.categories import Category
from memprof.reports.document import (
    Block,
    Document,
    Heading,
    Note,
    Part,
    StackedBar,
    StackedBars,
    Table,
    Tone,
)
from memprof.reports.units import format_bytes
from memprof.reports.views.cells import size_cell
from memprof.reports.views.fields import Fields, count, number, table, text
from memprof.studies.serving import Sequences, ServingPlan


def serving_document(plan: ServingPlan) -> Document:
    """Build the document: the tokens that fit, the other users of the pool, the programs, and sequences by context."""
    return Document(
        blocks=(
            Heading(text=_answer(plan), level=1, aside=f"{plan.label} on {plan.target.name}"),
            _sum(plan),
            _programs(plan),
            *_sequences(plan),
            *_notes(plan),
        )
    )


def _answer(plan: ServingPlan) -> str:
    if plan.max_tokens is None:
        return f"{format_bytes(plan.footprint_bytes)} with a cache of {plan.cache_tokens:,} tokens"
    return f"{plan.max_tokens:,} tokens of cache fit"


def _sum(plan: ServingPlan) -> StackedBars:
    """Draw the server with its compiled cache, and with the largest cache that fits."""
    rows = [("as compiled", plan.cache_bytes, plan.largest.own_bytes)]
    if plan.max_tokens:
        largest = plan.max_tokens * plan.cache_bytes_per_token
        copied = plan.largest.copied_cache_bytes * plan.max_tokens // plan.cache_tokens
        rows.append(("largest cache", largest, plan.largest.own_bytes - plan.largest.copied_cache_bytes + copied))
    bars = tuple(
        StackedBar(
            label=label,
            parts=tuple(
                Part(category=category, size_bytes=size)
                for category, size in (
                    (Category.PARAMS, plan.weights_bytes),
                    (Category.KV_CACHE, cache_bytes),
                    (Category.OTHER_STATE, plan.state_bytes),
                    (Category.FORWARD_TEMPS, own_bytes),
                    (Category.CONSTANTS, plan.constant_bytes),
                )
                if size
            ),
            size=format_bytes(plan.fixed_bytes + cache_bytes + own_bytes),
        )
        for label, cache_bytes, own_bytes in rows
    )
    return StackedBars(bars=bars, capacity_bytes=plan.pool_bytes)


def _programs(plan: ServingPlan) -> Table:
    return table(
        plan.programs,
        [
            text("program", lambda each: each.name),
            number("beside the shared part", lambda each: size_cell(each.own_bytes)),
            number("copies of the cache", lambda each: size_cell(each.copied_cache_bytes), priority=1),
            number("constants", lambda each: size_cell(each.constant_bytes), priority=2),
            number("footprint by itself", lambda each: size_cell(each.footprint_bytes), priority=3),
        ],
    )


def _sequences(plan: ServingPlan) -> tuple[Block, ...]:
    if not plan.sequences:
        return ()
    fields: Fields[Sequences] = (
        count("context", lambda each: each.context_len),
        count("sequences that fit", lambda each: each.num_sequences),
    )
    return (table(plan.sequences, fields),)


def _notes(plan: ServingPlan) -> tuple[Note, ...]:
    notes = [
        Note(
            text=f"Weights {format_bytes(plan.weights_bytes)}; {plan.cache_bytes_per_token:,} bytes of cache for "
            f"each token; {plan.largest.name} needs most beside them. Machine code and CUDA graphs are "
            "outside JAX's pool and are not counted.",
            tone=Tone.MUTED,
        )
    ]
    copying = [each.name for each in plan.programs if each.copied_cache_bytes]
    if copying:
        notes.append(Note(text=f"Copies of the cache cost tokens: see {', '.join(copying)}.", tone=Tone.WARNING))
    if plan.max_tokens == 0:
        notes.append(Note(text="Weights and programs do not fit, even without a cache.", tone=Tone.BAD))
    return tuple(notes)
