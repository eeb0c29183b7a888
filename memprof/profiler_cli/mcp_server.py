"""`memprof mcp`: the commands as tools of the Model Context Protocol, for agents that work on training code.

Each tool runs a command of memprof as a process of its own, and answers with what it prints, and with what the numbers
are; a command that fails is an error with its sentence. The server talks over stdin and stdout.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from memprof.errors import MemprofError
from memprof.version import __version__

if TYPE_CHECKING:
    from anyio import CapacityLimiter
    from mcp.server import MCPServer

_WIDTH = "100"
_MAX_CHARS = 4096
# A command whose server was killed ends with it.
_LAUNCH = """
import sys
from memprof.capture.processes.process_tree import die_with
die_with(int(sys.argv.pop(1)))
from memprof.profiler_cli.main import main
main()
"""
_INSTRUCTIONS = (
    "Says where every byte of device memory of a JAX training step goes, by compiling it for a GPU that need not be"
    " there. A step is a built-in workload (transformer, mlp) or FILE.py:NAME, where NAME is a function that returns"
    " memprof.StepSpec(train_step, arguments). `footprint` decides whether a step fits the pool that JAX"
    " takes of the card, 75% by default; `live peak` is the most that is live at once."
)
_CAVEAT = "Sizes are the compiler's; categories and modules are inferred; nothing was measured on a device."

Step = Annotated[str, "FILE.py:NAME, package.module:NAME, transformer or mlp"]
Target = Annotated[str, "a GPU: h100-80gb, a100-40gb, l4, ...; or cpu"]
Techniques = Annotated[str, "techniques joined with +, such as bf16+remat+donate; they need a built-in or a TrainSpec"]
Settings = Annotated[tuple[str, ...], "fields of the workload, or parameters of the function: batch_size=16"]
Pool = Annotated[str, "JAX's share of the card's memory to judge by, such as 0.9; empty: as JAX would take it, 75%"]
Capture = Annotated[str, "a file that `run` has written: NAME.memprof"]


def mcp() -> None:
    """Serve the commands to agents over the Model Context Protocol.

    An agent's configuration starts it with the command `memprof` and the argument `mcp`; docs/agents.md has examples.

        memprof mcp
    """
    server().run("stdio")


def server() -> MCPServer[Any]:
    """The server with its tools.

    Raises:
        MemprofError: what the extra `mcp` installs is not there.
    """
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise MemprofError(
            'serving agents needs the MCP SDK: install it with pip install "jax-memprof[mcp]"'
        ) from error
    made = MCPServer("memprof", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in (run, compare, fit, advise, show, import_programs, list_names):
        made.add_tool(tool, structured_output=False)
    return made


async def run(
    step: Step,
    target: Target = "h100-80gb",
    techniques: Techniques = "",
    settings: Settings = (),
    preset: str = "",
    pool: Pool = "",
) -> str:
    """Compile one training step, and say where its device memory goes: whether it fits, categories, largest buffers."""
    return await _memprof(
        "run", step, *_options(target=target, technique=techniques, set=settings, preset=preset, pool=pool)
    )


async def compare(
    step: Step,
    rows: Annotated[
        tuple[str, ...], "techniques of each row; the first is what others are compared with: baseline, bf16"
    ],
    target: Target = "h100-80gb",
    settings: Settings = (),
    preset: str = "",
    pool: Pool = "",
) -> str:
    """Compile a step with several techniques: what each saves, what it costs, and whether it took effect."""
    return await _memprof("compare", step, *_options(target=target, technique=rows, set=settings, preset=preset))


async def fit(
    step: Step,
    target: Target = "h100-80gb",
    vary: Annotated[str, "the field to grow"] = "batch_size",
    techniques: Techniques = "",
    settings: Settings = (),
    preset: str = "",
    pool: Pool = "",
) -> str:
    """Find the largest batch, or another field, with which a step fits the memory of a GPU."""
    options = _options(target=target, vary=vary, technique=techniques, set=settings, preset=preset, pool=pool)
    return await _memprof("fit", step, *options)


async def advise(capture: Capture, pool: Pool = "") -> str:
    """Say what could be done about the peak of a captured step: savings, costs, and the line of code for each."""
    return await _memprof("advise", capture, *_options(pool=pool))


async def show(
    capture: Capture,
    by: Annotated[str, "category, module, source, dtype, phase or buffer"] = "",
    pool: Pool = "",
) -> str:
    """Show a captured step again, by one key."""
    return await _memprof("show", capture, *_options(by=by, pool=pool))


async def import_programs(path: Annotated[str, "an XLA dump, or a log directory of XProf"]) -> str:
    """Make captures of programs that others have compiled, and show the largest."""
    return await _memprof("import", path)


async def list_names(kind: Annotated[str, "workloads, techniques, targets or optimizers"]) -> str:
    """List what there is to choose from."""
    return await _memprof("list", kind, of_steps=False)


def _options(**values: str | tuple[str, ...]) -> list[str]:
    """Options with their values; those that are empty are left out."""
    given = [
        (name, value) for name, found in values.items() for value in ([found] if isinstance(found, str) else found)
    ]
    return [f"--{name}={value}" for name, value in given if value]


async def _memprof(command: str, subject: str, *options: str, of_steps: bool = True) -> str:
    """Run a command and return its output. At most one command per processor runs; the others are queued."""
    import anyio
    from mcp.server.mcpserver.exceptions import ToolError

    if subject.startswith("-"):
        raise ToolError(f"'{subject[:_MAX_CHARS]}' is an option, but the name of what to look at was expected")
    columns = ["--width", _WIDTH] if of_steps else []
    arguments = [command, subject, *options, *columns]
    for argument in arguments:
        if len(argument) > _MAX_CHARS or "\0" in argument:
            raise ToolError(
                f"an argument has {len(argument):,} characters{' and a NUL' * (chr(0) in argument)}; at most"
                f" {_MAX_CHARS:,} without a NUL are accepted"
            )
    try:
        async with _limiter():
            done = await anyio.run_process([sys.executable, "-c", _LAUNCH, str(os.getpid()), *arguments], check=False)
    except (OSError, ValueError) as error:
        raise ToolError(f"memprof {command} cannot be started: {error}") from error
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        raise ToolError(said or f"memprof {command} ended with {done.returncode} and said nothing")
    parts = (done.stdout.decode(errors="replace").strip(), said, _CAVEAT if of_steps else "")
    return "\n".join(part for part in parts if part)


@cache
def _limiter() -> CapacityLimiter:
    from anyio import CapacityLimiter

    return CapacityLimiter(len(os.sched_getaffinity(0)))
