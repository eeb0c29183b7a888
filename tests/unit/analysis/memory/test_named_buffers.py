"""The buffers that a name finds: HLO names, types, modules of many layers, lines, what a table has cut off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_builder import buffer

from memprof.analysis.memory.named_buffers import buffers_named
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer, StackFrame, array_type, shown_source


def _buffer(name: str, dtype: str = "f32", **fields: object) -> LiveBuffer:
    made = buffer((8, 4), dtype, Category.ACTIVATIONS, op=f"jit(step)/{name}")
    return replace(made, name=name, **fields)  # type: ignore[arg-type]


CALL = StackFrame(file="/home/me/net.py", function="Net.<locals>.block", line=7, is_own=True)
BUFFERS = (
    _buffer("fusion.1", module="layers_0/mlp", source="model.py:40", library="flax/linen/linear.py:271"),
    _buffer("fusion.12", module="layers_1/mlp", source="model.py:4", stack=(CALL,)),
    _buffer("copy.3", "bf16", module="layers_12/mlp", source="Cell In[3]:6", phase=Phase.BACKWARD),
    _buffer("dot.4", "s32", module="embed", phase=Phase.NONE),
    _buffer("w", "u8", phase=Phase.ARGUMENT, op="params['w']"),
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        # The HLO name itself, and otherwise every text that contains the name.
        ("fusion.1", ["fusion.1"]),
        ("fusion", ["fusion.1", "fusion.12"]),
        ("jit(step)/copy", ["copy.3"]),
        ("nothing", []),
        # Types in XLA's words, and in JAX's.
        ("f32[8,4]", ["fusion.1", "fusion.12"]),
        ("bf16[8,4]", ["copy.3"]),
        ("bfloat16[8,4]", ["copy.3"]),
        ("float32", ["fusion.1", "fusion.12"]),
        ("int32", ["dot.4"]),
        ("uint8", ["w"]),
        ("complex64", []),
        ("float16", ["copy.3"]),  # as `f16`, which `bf16` contains
        # Modules of all layers, and of some.
        ("layers_*/mlp", ["fusion.1", "fusion.12", "copy.3"]),
        ("layers_{0..1}/mlp", ["fusion.1", "fusion.12"]),
        ("layers_{0,12}/mlp", ["fusion.1", "copy.3"]),
        ("layers_{1..3,12}/mlp", ["fusion.12", "copy.3"]),
        ("layers_{2..11}/mlp", []),
        ("layers_…", ["fusion.1", "fusion.12", "copy.3"]),
        # Lines: whole, with the library's line, apart, in a cell, and with the calls before them.
        ("model.py:40", ["fusion.1"]),
        ("model.py:40 > flax/linen/linear.py:271", ["fusion.1"]),
        ("model.py, line 4", ["fusion.1", "fusion.12"]),
        ("cell 3, line 6", ["copy.3"]),
        ("Cell In[3]:6", ["copy.3"]),
        ("Net.block (net.py) > model.py:4", ["fusion.12"]),
        ("/home/me/net.py, Net.block, line 7", ["fusion.12"]),
        # What has no name.
        ("(no module)", ["w"]),
        ("(no source line)", ["dot.4", "w"]),
        ("(no phase)", ["dot.4"]),
        ("(no dtype)", []),
        ("(arguments of the step)", ["w"]),
        ("backward", ["copy.3"]),
        ("activations", ["fusion.1", "fusion.12", "copy.3", "dot.4", "w"]),
        # Characters of patterns are themselves.
        ("fusion?1", []),
        ("params['w']", ["w"]),
    ],
)
def test_a_name_finds_the_buffers_whose_texts_it_is(name: str, found: list[str]) -> None:
    assert [each.name for each in buffers_named(BUFFERS, name)] == found


def test_a_type_is_written_as_jax_does() -> None:
    assert [array_type("bf16", shape) for shape in ((8, 1024), (3,), ())] == ["bf16[8,1024]", "bf16[3]", "bf16[]"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Cell In[3]:6", "cell 3, line 6"),
        ("Cell In[12]", "cell 12"),
        ("Net (Cell In[3]) > Cell In[4]:1", "Net (cell 3) > cell 4, line 1"),
        ("model.py:40", "model.py:40"),
    ],
)
def test_cells_of_a_notebook_are_shown_by_their_number(text: str, shown: str) -> None:
    assert shown_source(text) == shown
