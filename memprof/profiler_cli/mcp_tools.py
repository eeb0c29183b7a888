"""The tools of `memprof mcp`: each runs a command of memprof in a process of its own, and answers with what it prints.

An answer is at most a page long. A longer one ends in a handle, with which the tool `more` gives the next page.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from memprof.profiler_cli.endings import is_capture
from memprof.workloads.user.reference import is_reference

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from mcp.server import MCPServer

MAX_CHARS = 1500  # of an answer
_MAX_KEPT = 32  # answers that are longer than that
_WIDTH = "100"
_LONGEST_ARGUMENT = 4096
_CHECK_FAILED = 1
# A command whose server was killed ends with it.
_LAUNCH = """
import sys
from memprof.sources.jax.processes.process_tree import die_with
die_with(int(sys.argv.pop(1)))
from memprof.profiler_cli.main import main
main(verdict_first=True)
"""
_CAVEAT = "Sizes are the compiler's; categories and modules are inferred; nothing was measured on a device."
_RUNS_CODE = " It imports FILE.py, which runs the user's code."

_Tool = Callable[..., Awaitable[str]]
Step = Annotated[
    str,
    Field(
        description="What to compile: FILE.py:NAME or package.module:NAME, where NAME is a function that returns"
        " memprof.StepSpec or memprof.TrainSpec; or a training script, FILE.py, which runs until it calls its step; or"
        " a built-in workload: transformer, mlp or decoder.",
        examples=["train.py:step_spec", "train.py", "transformer"],
    ),
]
Target = Annotated[
    str,
    Field(
        description="The device to compile for, which may be absent; `list_names` has all.",
        examples=["a100-40gb", "v5e", "cpu"],
    ),
]
Techniques = Annotated[
    str,
    Field(
        description="Techniques joined with +; they need a built-in workload or a TrainSpec. Empty: none.",
        examples=["bf16+remat+donate"],
    ),
]
Settings = Annotated[
    tuple[str, ...],
    Field(
        description="Fields of the workload, or parameters of the function, each NAME=VALUE. Empty: their defaults.",
        examples=[["batch_size=16"]],
    ),
]
Preset = Annotated[
    str,
    Field(description="The size of a built-in workload. Empty: its default.", examples=["gpt2", "tiny", "llama-8b"]),
]
Mesh = Annotated[
    str,
    Field(
        description="The axes of a mesh of many devices; numbers are then those of one device. Empty: one device.",
        examples=["fsdp=4,tp=2", "8"],
    ),
]
Pool = Annotated[
    str,
    Field(description="JAX's share of the card's memory for the verdict. Empty: JAX's default, 75%.", examples=["0.9"]),
]
Capture = Annotated[
    str,
    Field(description="A file that `run` or `import_programs` has written.", examples=["mlp-tiny-cpu.memprof"]),
]
Memory = Annotated[
    str, Field(description="A budget of device memory. Empty: JAX's pool on the target.", examples=["30GiB"])
]


def add_tools(server: MCPServer[Any], *, with_user_code: bool) -> None:
    """Add all tools to a server.

    Args:
        with_user_code: whether tools may run code of the user; otherwise they refuse to.
    """
    tools = Tools(with_user_code=with_user_code)
    compiling: tuple[_Tool, ...] = (tools.run, tools.compare, tools.fit, tools.check, tools.plan)
    writing: tuple[_Tool, ...] = (*compiling, tools.watch, tools.import_programs)
    reading: tuple[_Tool, ...] = (tools.advise, tools.show, tools.explain, tools.list_names, tools.more)
    for tool in (*writing, *reading):
        server.add_tool(
            tool,
            description=" ".join((tool.__doc__ or "").split()) + (_RUNS_CODE if tool in compiling else ""),
            annotations=ToolAnnotations(
                read_only_hint=tool in reading, destructive_hint=tool == tools.watch, open_world_hint=False
            ),
            structured_output=False,
        )


class Tools:
    """The tools, and the answers of which an agent may still ask for more."""

    def __init__(self, *, with_user_code: bool) -> None:
        self._with_user_code = with_user_code
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._numbers = count(1)

    async def run(
        self,
        step: Step,
        target: Target = "h100-80gb",
        techniques: Techniques = "",
        settings: Settings = (),
        preset: Preset = "",
        mesh: Mesh = "",
        pool: Pool = "",
    ) -> str:
        """Compile one training step and report where its device memory goes.

        Says whether it fits, its categories and its largest buffers. Writes a capture for `show` and `advise`. The step
        does not run.
        """
        options = _options(target=target, technique=techniques, set=settings, preset=preset, mesh=mesh, pool=pool)
        return await self._of_step("run", step, options)

    async def compare(
        self,
        step: Step,
        rows: Annotated[
            tuple[str, ...],
            Field(
                description="The techniques of each row; the first row is the reference.",
                examples=[["baseline", "bf16", "bf16+remat"]],
            ),
        ],
        target: Target = "h100-80gb",
        settings: Settings = (),
        preset: Preset = "",
        mesh: Mesh = "",
    ) -> str:
        """Compile a step with several techniques: what each saves, what it costs, and whether it took effect."""
        options = _options(target=target, technique=rows, set=settings, preset=preset, mesh=mesh)
        return await self._of_step("compare", step, options)

    async def fit(
        self,
        step: Step,
        target: Target = "h100-80gb",
        vary: Annotated[
            str, Field(description="The field to grow.", examples=["batch_size", "seq_len", "devices"])
        ] = "batch_size",
        techniques: Techniques = "",
        memory: Memory = "",
        settings: Settings = (),
        preset: Preset = "",
        mesh: Mesh = "",
        pool: Pool = "",
    ) -> str:
        """Find the largest batch, or another field, with which a step fits a device, in several compiles."""
        options = _options(
            target=target,
            vary=vary,
            technique=techniques,
            memory=memory,
            set=settings,
            preset=preset,
            mesh=mesh,
            pool=pool,
        )
        return await self._of_step("fit", step, options)

    async def check(
        self,
        step: Step,
        target: Target = "",
        max: Annotated[  # noqa: A002 - the name of the option
            str, Field(description="The footprint must not exceed this. Empty: no limit.", examples=["30GiB"])
        ] = "",
        fits: Annotated[
            str, Field(description="The step must fit JAX's pool on this device. Empty: unchecked.", examples=["l4"])
        ] = "",
        against: Annotated[
            str,
            Field(
                description="A baseline or a capture that the footprint must not exceed. Empty: none.",
                examples=["baseline.json", "before.memprof"],
            ),
        ] = "",
        settings: Settings = (),
        mesh: Mesh = "",
    ) -> str:
        """Check the memory of a step, or of a capture, against limits or a baseline, and say what grew."""
        options = _options(target=target, max=max, fits=fits, against=against, set=settings, mesh=mesh)
        return await self._of_step("check", step, options)

    async def plan(
        self,
        step: Step,
        target: Target = "h100-80gb",
        memory: Memory = "",
        techniques: Techniques = "",
        settings: Settings = (),
        preset: Preset = "",
    ) -> str:
        """Find the code of the checkpoint policy that keeps a step within a budget and is fastest."""
        options = _options(target=target, memory=memory, technique=techniques, set=settings, preset=preset)
        return await self._of_step("plan", step, options)

    async def watch(
        self,
        script: Annotated[str, Field(description="A training script.", examples=["train.py"])],
        arguments: Annotated[
            tuple[str, ...], Field(description="Its arguments. Empty: none.", examples=[["--batch-size", "8"]])
        ] = (),
        target: Annotated[
            str,
            Field(
                description="A device to compile its programs for; the script then ends at its first training step."
                " Empty: the device of this machine.",
                examples=["h100-80gb"],
            ),
        ] = "",
        stop_after: Annotated[
            str,
            Field(
                description="When to end the script: after a number of programs, or a time. Empty: it ends by itself.",
                examples=["3", "90s"],
            ),
        ] = "",
    ) -> str:
        """Run an unmodified training script and report every program that it compiles, and what grows.

        This runs the user's code as `python SCRIPT` does, with all that it writes.
        """
        self._check_code(script, "watch")
        return await self._answer(
            "watch", *_options(target=target, stop_after=stop_after), script, *arguments, subject=script, caveat=""
        )

    async def advise(self, capture: Capture, pool: Pool = "") -> str:
        """Say what could be done about the peak of a captured step: savings, costs, and the code for each."""
        return await self._answer("advise", capture, *_options(pool=pool), *_COLUMNS, subject=capture)

    async def show(
        self,
        capture: Capture,
        by: Annotated[
            str,
            Field(
                description="category, module, source, stack, dtype, phase or buffer. Empty: the whole report.",
                examples=["module"],
            ),
        ] = "",
        why: Annotated[
            str,
            Field(
                description="Why a buffer is live at the peak: an op name, line, module, shape or HLO name. Empty: no"
                " buffer.",
                examples=["layers_3/attention", "model.py:40"],
            ),
        ] = "",
        before: Annotated[
            str, Field(description="An earlier capture: what changed since. Empty: none.", examples=["before.memprof"])
        ] = "",
        pool: Pool = "",
    ) -> str:
        """Show a capture, or a memory profile of JAX, without compiling.

        Gives the report, one breakdown, why a buffer is live, or what changed since an earlier one.
        """
        options = _options(by=by, why=why, diff=before, pool=pool)
        caveat = _CAVEAT if is_capture(capture) else ""
        return await self._answer("show", capture, *options, *_COLUMNS, subject=capture, caveat=caveat)

    async def explain(
        self,
        log: Annotated[str, Field(description="The log of a run that ran out of memory.", examples=["slurm-1.out"])],
        program: Annotated[
            str,
            Field(
                description="A capture or a dump of a program that may have run. Empty: none.",
                examples=["step.memprof"],
            ),
        ] = "",
    ) -> str:
        """Explain why a run died out of memory: what was asked for, what was free, and which buffer it was."""
        return await self._answer("explain", log, *_options(program=program), *_COLUMNS, subject=log, caveat="")

    async def import_programs(
        self,
        path: Annotated[
            str,
            Field(
                description="A dump of XLA, a log directory of XProf, a StableHLO file, or a memory profile of JAX.",
                examples=["dump", "memory.prof"],
            ),
        ],
        program: Annotated[
            str,
            Field(
                description="The program to capture, by its name; of a memory profile, a capture of the step. Empty:"
                " the largest.",
                examples=["jit_train_step"],
            ),
        ] = "",
    ) -> str:
        """Make captures of programs compiled elsewhere, and report the largest."""
        return await self._answer("import", path, *_options(program=program), *_COLUMNS, subject=path, caveat="")

    async def list_names(
        self,
        kind: Annotated[
            str,
            Field(
                description="workloads, techniques, targets or optimizers. Empty: the names of all.",
                examples=["techniques"],
            ),
        ] = "",
    ) -> str:
        """List what there is to choose from."""
        return await self._answer("list", *([kind] if kind else []), subject=kind, caveat="")

    async def more(
        self,
        handle: Annotated[
            str, Field(description="The handle at the end of an answer that was cut.", examples=["answer-3"])
        ],
        page: Annotated[int, Field(description="Which page, from 2 on.", examples=[2], ge=1)] = 2,
    ) -> str:
        """Give the next page of an answer that was too long."""
        if handle not in self._answers:
            raise ToolError(f"the answer {handle!r} does not exist; only the last {_MAX_KEPT} long answers are kept")
        return self._page(handle, page)

    async def _of_step(self, command: str, step: str, options: list[str]) -> str:
        if is_reference(step):
            self._check_code(step, command)
        return await self._answer(command, step, *options, *_COLUMNS, subject=step)

    def _check_code(self, code: str, command: str) -> None:
        if not self._with_user_code:
            raise ToolError(
                f"{command} would run the code of {code}, which this server rejects (--no-user-code): use a built-in "
                "workload, a capture or a dump"
            )

    async def _answer(self, command: str, *arguments: str, subject: str, caveat: str = _CAVEAT) -> str:
        """Run a command; its output, or the first page of it."""
        if subject.startswith("-"):
            raise ToolError(f"'{subject[:_LONGEST_ARGUMENT]}' is an option, but the name of a subject was expected")
        text = await _output(command, *arguments)
        whole = "\n".join(part for part in (text, caveat) if part)
        if len(whole) <= MAX_CHARS:
            return whole
        handle = f"answer-{next(self._numbers)}"
        self._answers[handle] = whole
        while len(self._answers) > _MAX_KEPT:
            self._answers.popitem(last=False)
        return self._page(handle, 1)

    def _page(self, handle: str, number: int) -> str:
        pages = _pages(self._answers[handle])
        if not 1 <= number <= len(pages):
            raise ToolError(f"{handle} has {len(pages)} pages")
        ending = (
            ""
            if number == len(pages)
            else f"\n({len(pages) - number} more: more(handle={handle!r}, page={number + 1}))"
        )
        return f"{pages[number - 1]}{ending}"


_COLUMNS = ("--width", _WIDTH)
_ROOM = 80  # for the sentence at the end of a page


def _pages(text: str) -> list[str]:
    """A text in pages of whole lines; a line that is longer than a page is cut."""
    most = MAX_CHARS - _ROOM
    pages = [""]
    for line in text.splitlines():
        for piece in [line[start : start + most] for start in range(0, len(line), most)] or [""]:
            if pages[-1] and len(pages[-1]) + 1 + len(piece) > most:
                pages.append("")
            pages[-1] += f"\n{piece}" if pages[-1] else piece
    return pages


def _options(**values: str | tuple[str, ...]) -> list[str]:
    """Options with their values; those that are empty are left out."""
    given = [
        (name.replace("_", "-"), value)
        for name, found in values.items()
        for value in ([found] if isinstance(found, str) else found)
    ]
    return [f"--{name}={value}" for name, value in given if value]


async def _output(command: str, *arguments: str) -> str:
    """What a command prints. At most one command per processor runs; the others are queued.

    Raises:
        ToolError: it failed; the sentence is its own.
    """
    import anyio

    for argument in arguments:
        if len(argument) > _LONGEST_ARGUMENT or "\0" in argument:
            raise ToolError(
                f"an argument has {len(argument):,} characters{' and a NUL' * (chr(0) in argument)}; at most"
                f" {_LONGEST_ARGUMENT:,} without a NUL are accepted"
            )
    line = [sys.executable, "-c", _LAUNCH, str(os.getpid()), command, *arguments]
    try:
        async with _limiter():
            done = await anyio.run_process(line, check=False, stdin=None)
    except (OSError, ValueError) as error:
        raise ToolError(f"memprof {command} cannot be started: {error}") from error
    printed, said = (stream.decode(errors="replace").strip() for stream in (done.stdout, done.stderr))
    has_answer = done.returncode == 0 or (printed and (done.returncode == _CHECK_FAILED or command == "watch"))
    if not has_answer:
        raise ToolError((said or printed or f"memprof {command} ended with {done.returncode}")[-MAX_CHARS:])
    return "\n".join(part for part in (printed, said) if part)


@cache
def _limiter() -> CapacityLimiter:
    from anyio import CapacityLimiter

    return CapacityLimiter(len(os.sched_getaffinity(0)))
