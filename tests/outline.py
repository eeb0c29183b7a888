"""A document as plain text: every field of every block that is not as it comes, so that a recording shows them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

from memprof.reports.document import Bar, Block, Cell, Document, Facts, Row, StackedBars, StackedChart, Table


def outline(document: Document) -> str:
    return "".join(f"{line}\n" for block in document.blocks for line in block_outline(block))


def block_outline(block: Block) -> Iterator[str]:
    match block:
        case Facts():
            yield "Facts"
            yield from (f"  {_plain(fact)}" for fact in block.facts)
        case StackedBars():
            shown = f"shown {block.shown_capacity_bytes} of {block.scale_bytes}"
            yield f"StackedBars capacity {block.capacity_bytes}, {shown}"
            yield from (f"  {bar.label}: {_stack(bar.parts)} = {bar.size}" for bar in block.bars)
        case StackedChart():
            yield f"StackedChart {block.mark}{' is_small' if block.is_small else ''}"
            yield from (f"  {moment.band}: {_stack(moment.parts)}" for moment in block.moments)
        case Table():
            yield f"Table{' continued' if block.continued else ''}{' is_extract' if block.is_extract else ''}"
            yield from (f"  {_plain(column)}" for column in block.columns)
            yield from _rows(block.rows, "    ")
            if block.total is not None:
                yield from _rows([block.total], "    total: ")
        case _:
            yield _plain(block)


def _rows(rows: Sequence[Row], indent: str) -> Iterator[str]:
    for row in rows:
        yield indent + " | ".join(map(_cell, row.cells))
        yield from _rows(row.children, f"{indent}    ")


def _cell(cell: Cell | Bar) -> str:
    if isinstance(cell, Bar):
        return f"#{cell.value}{_sign(cell.category)}"
    verdict = "!" if cell.is_verdict else ""
    return f"{cell.text}{_sign(cell.key)}{verdict}{f' -> {cell.link}' if cell.link else ''}"


def _sign(key: Enum | None) -> str:
    return "" if key is None else f" <{key.value}>"


def _stack(parts: Sequence[Any]) -> str:
    return " + ".join(f"{part.category.value} {part.size_bytes}" for part in parts)


def _plain(record: Any) -> str:
    """A record with the fields that are not as they come."""
    shown = []
    for field in fields(record):
        value = getattr(record, field.name)
        if field.default is MISSING or value != field.default:
            if isinstance(value, tuple) and value and hasattr(value[0], "category"):
                value = _stack(value)
            shown.append(f"{field.name}={value.value if isinstance(value, Enum) else repr(value)}")
    return f"{type(record).__name__} {' '.join(shown)}"
