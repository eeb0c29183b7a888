"""Find the live buffers that a name in a report refers to.

Reports shorten names: `layers_*/mlp` for the same module of all layers, `layers_{0..11}` for equal siblings,
`model.py:40 > flax/linen/linear.py:271` for a line and the library's line beneath it, `…` for truncated text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer, array_type, shown_source

# Placeholders and separators: any layer number, truncated text, layer numbers in braces, the borders between cells.
_SHORTENED = re.compile(r"\*|…|\{(?P<numbers>\d[\d.,]*)\}|, | > | · ")
_ARGUMENTS = "(arguments of the step)"
# JAX's names of dtypes, as in lists of parameters; buffers have XLA's names.
_JAX_TYPE = re.compile(r"\b(?P<kind>bfloat|float|uint|int|complex)(?=\d)")
_XLA_KINDS = {"bfloat": "bf", "float": "f", "uint": "u", "int": "s", "complex": "c"}
_NAMELESS = re.compile(r"\(no (?P<what>module|source line|dtype|phase)\)")


def buffers_named(buffers: Sequence[LiveBuffer], name: str) -> tuple[LiveBuffer, ...]:
    """Return the buffers with this HLO name, or else the buffers for which a report prints text with this name."""
    exact = tuple(buffer for buffer in buffers if buffer.name == name)
    if exact:
        return exact
    nameless = _NAMELESS.fullmatch(name)
    if nameless:
        return tuple(buffer for buffer in buffers if not _names(buffer)[nameless["what"]])
    if name == _ARGUMENTS:
        return tuple(buffer for buffer in buffers if buffer.phase is Phase.ARGUMENT)
    pattern = re.compile(_pattern(name), re.DOTALL)
    found = tuple(buffer for buffer in buffers if any(map(pattern.search, _texts(buffer))))
    in_xla_words = _JAX_TYPE.sub(lambda match: _XLA_KINDS[match["kind"]], name)
    return buffers_named(buffers, in_xla_words) if not found and in_xla_words != name else found


def _pattern(name: str) -> str:
    parts: list[str] = []
    end = 0
    for match in _SHORTENED.finditer(name):
        parts += [re.escape(name[end : match.start()]), _any_of(match["numbers"]) if match["numbers"] else ".*"]
        end = match.end()
    return "".join([*parts, re.escape(name[end:])])


def _any_of(numbers: str) -> str:
    """Return a pattern for the numbers of some layers, like `0..3,5`."""
    runs = [run.split("..") for run in numbers.split(",") if run]
    each = [str(number) for run in runs for number in range(int(run[0]), int(run[-1]) + 1)]
    return f"(?:{'|'.join(each)})"


def _names(buffer: LiveBuffer) -> dict[str, str]:
    phase = "" if buffer.phase.value == "none" else buffer.phase.value
    return {"module": buffer.module, "source line": buffer.source, "dtype": buffer.dtype, "phase": phase}


def _texts(buffer: LiveBuffer) -> Iterator[str]:
    """Yield all texts by which a report identifies a buffer, with both names of each notebook cell."""
    for text in _texts_in_data(buffer):
        yield text
        if (shown := shown_source(text)) != text:
            yield shown


def _texts_in_data(buffer: LiveBuffer) -> Iterator[str]:
    yield from (buffer.name, buffer.op, buffer.category.value, *_names(buffer).values())
    yield array_type(buffer.dtype, buffer.shape)
    calls = [f"{call.function.replace('.<locals>', '')} ({posixpath.basename(call.file)})" for call in buffer.stack]
    yield "\n".join([*calls, buffer.source, buffer.library])  # in the order in which a row joins them
    file, _, line = buffer.source.rpartition(":")
    yield f"{file}\nline {line}"
    for call in buffer.stack:
        yield f"{call.file}\n{call.function.replace('.<locals>', '')}\nline {call.line}"
