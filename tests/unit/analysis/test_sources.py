"""The source line of an operation."""

from __future__ import annotations

import pytest
from hlo import Step
from hlo_nodes import f32

from memprof.analysis.program import decode_program
from memprof.analysis.sources import Sources

_SITE = "/venv/lib/python3.12/site-packages"


def _line(*files: str) -> str:
    """The line for a stack through `files`, outermost first; the frame of the n-th file is at line n."""
    step = Step()
    frame = 0
    for line, file in enumerate(files, start=1):
        frame = step.frame(file, line, caller=frame)
    step.op("op", "iota", f32(4), frame=frame)
    program = decode_program(step.proto())
    sources = Sources(program)
    found = sources.line(program.instructions[0])
    assert sources.line(program.instructions[0]) == found  # from the cache
    return found


@pytest.mark.parametrize(
    ("files", "line"),
    [
        # the innermost frame of the user, whoever called him and whatever he calls
        (["/home/me/train.py", "/home/me/model.py"], "/home/me/model.py:2"),
        (["/home/me/train.py", f"{_SITE}/jax/_src/api.py", f"{_SITE}/flax/linen/linear.py"], "/home/me/train.py:1"),
        (["/home/me/train.py", f"{_SITE}/optax/_src/update.py"], "/home/me/train.py:1"),
        (["/home/me/train.py", "/usr/lib/python3.12/functools.py", "<string>"], "/home/me/train.py:1"),
        # an installed package may be the user's model
        (["/home/me/train.py", f"{_SITE}/mymodel/net.py", f"{_SITE}/jax/numpy.py"], "mymodel/net.py:2"),
        (["/usr/lib/python3/dist-packages/mymodel/net.py"], "mymodel/net.py:1"),
        # memprof's workloads are models like anybody's; the rest of memprof is machinery
        ([f"{_SITE}/memprof/capture/compile.py", f"{_SITE}/memprof/workloads/m.py"], "memprof/workloads/m.py:2"),
        (["/src/memprof/workloads/m.py", "/src/memprof/capture/flops.py"], "/src/memprof/workloads/m.py:1"),
        (["/home/me/train.py", "/src/memprof/analysis/pipeline.py"], "/home/me/train.py:1"),
        (["/home/me/train.py", "/src/memprof/profiler_cli/main.py"], "/home/me/train.py:1"),
        # nothing but libraries: the innermost
        ([f"{_SITE}/jax/_src/api.py", f"{_SITE}/optax/_src/alias.py"], "optax/_src/alias.py:2"),
        (["/usr/lib/python3.12/runpy.py"], "/usr/lib/python3.12/runpy.py:1"),
        # Windows
        ([r"C:\me\train.py", r"C:\venv\Lib\site-packages\jax\_src\api.py"], r"C:\me\train.py:1"),
        ([r"C:\venv\Lib\site-packages\mymodel\net.py"], r"mymodel\net.py:1"),
        ([], ""),
    ],
)
def test_the_innermost_line_of_the_user(files: list[str], line: str) -> None:
    assert _line(*files) == line


def test_a_file_that_only_looks_like_a_library_is_the_users() -> None:
    assert _line("/home/me/jax/model.py", f"{_SITE}/jaxtools/layers.py") == "jaxtools/layers.py:2"


def test_instructions_without_a_stack_have_lines_of_their_own() -> None:
    step = Step()
    step.op("a", "iota", f32(4))
    step.op("b", "iota", f32(4))
    proto = step.proto()
    for number, instruction in enumerate(proto.hlo_module.computations[0].instructions, start=5):
        instruction.metadata.source_file, instruction.metadata.source_line = "loss.py", number
    program = decode_program(proto)
    sources = Sources(program)
    assert [sources.line(instruction) for instruction in program.instructions] == ["loss.py:5", "loss.py:6"]
