"""The source line of an operation."""

from __future__ import annotations

import pytest
from hlo import Step, program_of
from hlo_nodes import f32

from memprof.analysis.attribution.sources import SourcePlace, Sources
from memprof.analysis.records.capture import CodeFolders
from memprof.analysis.records.live_buffer import StackFrame

_SITE = "/venv/lib/python3.12/site-packages"


def _lines(*files: str, folders: CodeFolders | None = None) -> SourcePlace:
    """The lines for a stack through `files`, outermost first; the frame of the n-th file is at line n."""
    step = Step()
    frame = 0
    for line, file in enumerate(files, start=1):
        frame = step.frame(file, line, caller=frame)
    step.op("op", "iota", f32(4), frame=frame)
    program = program_of(step.proto())
    sources = Sources(program, folders)
    found = sources.lines(program.instructions[0])
    assert sources.lines(program.instructions[0]) == found  # from the cache
    return found


@pytest.mark.parametrize(
    ("files", "line"),
    [
        # the innermost frame of the user, whoever called it and whatever it calls
        (["/home/me/train.py", "/home/me/model.py"], "/home/me/model.py:2"),
        (["/home/me/train.py", f"{_SITE}/jax/_src/api.py", f"{_SITE}/flax/linen/linear.py"], "/home/me/train.py:1"),
        (["/home/me/train.py", f"{_SITE}/optax/_src/update.py"], "/home/me/train.py:1"),
        (["/home/me/train.py", "/usr/lib/python3.12/functools.py", "<string>"], "/home/me/train.py:1"),
        # what is installed is a library, whatever its name; where nothing else is there, it may be the user's model
        (["/home/me/train.py", f"{_SITE}/penzai/named_axes.py", f"{_SITE}/jax/numpy.py"], "/home/me/train.py:1"),
        ([f"{_SITE}/mymodel/net.py", f"{_SITE}/jax/numpy.py"], "mymodel/net.py:1"),
        (["/usr/lib/python3/dist-packages/mymodel/net.py"], "mymodel/net.py:1"),
        # memprof's workloads are models like anybody's; the rest of memprof is machinery
        ([f"{_SITE}/memprof/sources/jax/compile.py", f"{_SITE}/memprof/workloads/m.py"], "memprof/workloads/m.py:2"),
        (["/src/memprof/workloads/m.py", "/src/memprof/sources/jax/tracing/flops.py"], "/src/memprof/workloads/m.py:1"),
        # what calls memprof is not in the step
        (["/me/run.py", "/src/memprof/api.py", f"{_SITE}/mymodel/net.py"], "mymodel/net.py:3"),
        (["/me/run.py", "/src/memprof/sources/jax/compile.py", "/me/train.py"], "/me/train.py:3"),
        # what was typed is the user's, what a library made up is not
        (["<stdin>", f"{_SITE}/jax/_src/api.py"], "<stdin>:1"),
        (["<ipython-input-3-abc>", "<string>"], "<ipython-input-3-abc>:1"),
        # nothing but libraries: the innermost
        ([f"{_SITE}/jax/_src/api.py", f"{_SITE}/optax/_src/alias.py"], "optax/_src/alias.py:2"),
        ([f"{_SITE}/optax/_src/alias.py", f"{_SITE}/flax/linen/linear.py"], "flax/linen/linear.py:2"),
        (["/usr/lib/python3.12/runpy.py"], "/usr/lib/python3.12/runpy.py:1"),
        (["/usr/lib/python3.12/runpy.py", "/usr/lib/python3.12/enum.py"], "/usr/lib/python3.12/enum.py:2"),
        # Windows
        ([r"C:\me\train.py", r"C:\venv\Lib\site-packages\jax\_src\api.py"], r"C:\me\train.py:1"),
        ([r"C:\venv\Lib\site-packages\mymodel\net.py"], r"mymodel\net.py:1"),
        ([], ""),
    ],
)
def test_the_innermost_line_of_the_user(files: list[str], line: str) -> None:
    assert _lines(*files).user == line


def test_a_file_that_only_looks_like_a_library_is_the_users() -> None:
    assert _lines("/home/me/jax/model.py", f"{_SITE}/jaxtools/layers.py") == SourcePlace(
        "/home/me/jax/model.py:1", "jaxtools/layers.py:2"
    )


def test_the_folders_of_the_capture_tell_whose_code_it_is() -> None:
    folders = CodeFolders(user=(f"{_SITE}/mine",), standard_library=("C:/Python/Lib",))
    files = ("C:/Python/Lib/runpy.py", f"{_SITE}/mine/net.py", "C:/Python/Lib/functools.py")
    assert _lines(*files, folders=folders).user == "mine/net.py:2"
    # a virtual environment in the user's folder is no code of theirs
    at_home = CodeFolders(user=("/venv",))
    assert _lines("/venv/train.py", f"{_SITE}/flax/linear.py", folders=at_home).user == "/venv/train.py:1"


@pytest.mark.parametrize(
    ("files", "library"),
    [
        # the innermost, without JAX, the standard library and what is made up
        ([f"{_SITE}/flax/core.py", f"{_SITE}/flax/linear.py", "<string>", f"{_SITE}/jax/lax.py"], "flax/linear.py:3"),
        (["/usr/lib/python3.12/functools.py", f"{_SITE}/jax/lax.py"], ""),
        ([], ""),
    ],
)
def test_the_line_of_a_library_beneath_the_users(files: list[str], library: str) -> None:
    assert _lines("/home/me/train.py", *files).library == library


def test_where_no_line_is_the_users_no_line_is_beneath_it() -> None:
    assert _lines(f"{_SITE}/jax/_src/api.py", f"{_SITE}/optax/_src/alias.py") == SourcePlace(
        "optax/_src/alias.py:2", ""
    )


def test_what_a_library_calls_from_everywhere_says_less_than_who_calls_it() -> None:
    step = Step()
    user = step.frame("/home/me/train.py", 1)
    layers = [step.frame(f"{_SITE}/penzai/linear.py", line, caller=user) for line in (10, 20, 30)]
    mapped = [step.frame(f"{_SITE}/penzai/named_axes.py", 5, caller=layer) for layer in layers]
    inner = [step.frame(f"{_SITE}/penzai/named_axes.py", 6, caller=axes) for axes in mapped]
    for number, frame in enumerate(inner):
        step.op(f"op{number}", "iota", f32(4), frame=frame)
    # the user calls it himself: then there is nothing that says more
    step.op("own", "iota", f32(4), frame=step.frame(f"{_SITE}/penzai/named_axes.py", 5, caller=user))
    program = program_of(step.proto())
    sources = Sources(program)
    assert [sources.lines(instruction).library for instruction in program.instructions] == [
        "penzai/linear.py:10",
        "penzai/linear.py:20",
        "penzai/linear.py:30",
        "penzai/named_axes.py:5",
    ]


def test_instructions_without_a_stack_have_lines_of_their_own() -> None:
    step = Step()
    step.op("a", "iota", f32(4))
    step.op("b", "iota", f32(4))
    proto = step.proto()
    for number, instruction in enumerate(proto.hlo_module.computations[0].instructions, start=5):
        instruction.metadata.source_file, instruction.metadata.source_line = "loss.py", number
    program = program_of(proto)
    sources = Sources(program)
    assert [sources.lines(instruction).user for instruction in program.instructions] == ["loss.py:5", "loss.py:6"]


def test_the_stack_has_all_calls_of_the_step() -> None:
    files = ["/me/run.py", "/src/memprof/api.py", "/me/train.py", f"{_SITE}/flax/linear.py", f"{_SITE}/jax/lax.py"]
    assert _lines(*files).stack == (
        StackFrame("/me/train.py", "f", 3, is_own=True),
        StackFrame("flax/linear.py", "f", 4, is_own=False),
        StackFrame("jax/lax.py", "f", 5, is_own=False),
    )
    assert _lines().stack == ()


def test_of_code_that_calls_itself_the_innermost_calls_are_kept() -> None:
    stack = _lines(*["/me/train.py"] * 300).stack
    assert (len(stack), stack[0].line, stack[-1].line) == (100, 201, 300)


def test_a_cell_of_a_notebook_has_the_name_that_its_user_sees() -> None:
    file = "/tmp/ipykernel_12/345.py"
    found = _lines(file, folders=CodeFolders(cells={file: "Cell In[3]"}))
    assert (found.user, found.stack) == ("Cell In[3]:1", (StackFrame("Cell In[3]", "f", 1, is_own=True),))
