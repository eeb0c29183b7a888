"""The server for agents, asked by the client of the protocol's own SDK."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the MCP SDK is not installed")

import anyio
from integration.command import Command, parent_of, processes_with, wait_until
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

pytestmark = pytest.mark.with_one_jax

Ask = Callable[..., Awaitable[Any]]


def with_server(memprof: Command, ask: Callable[[ClientSession], Awaitable[None]], *options: str) -> None:
    """Start the server as an agent does, in the command's folder, and ask it."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "memprof.profiler_cli.main", "mcp", *options],
        env=dict(memprof.environment),
        cwd=memprof.folder,
    )

    async def session() -> None:
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            await ask(client)

    # In a thread of its own: Playwright leaves a loop that runs in the one where browsers are tested.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(anyio.run, session).result()


def text(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


def test_an_agent_compiles_a_step_and_looks_at_it_from_other_sides(memprof: Command) -> None:
    async def ask(client: ClientSession) -> None:
        ran = await client.call_tool("run", {"step": "mlp", "target": "cpu", "preset": "tiny", "settings": ["seed=3"]})
        assert not ran.is_error, text(ran)
        verdict, heading = text(ran).splitlines()[:2]
        assert re.fullmatch("• footprint [0-9.]+ KiB; cpu has no fixed amount of memory", verdict)
        assert heading.startswith("mlp  tiny, on cpu")
        assert "P params" in text(ran)
        handle = text(ran).rpartition("handle='")[2].partition("'")[0]
        rest = await client.call_tool("more", {"handle": handle})
        assert "inferred" in text(rest)  # its caveats come with the numbers
        (capture,) = memprof.folder.glob("*.memprof")
        by = await client.call_tool("show", {"capture": capture.name, "by": "dtype"})
        assert "f32" in text(by)
        advice = await client.call_tool("advise", {"capture": capture.name})
        assert "donate" in text(advice)

    with_server(memprof, ask)


def test_its_tools_say_what_they_do_and_a_mistake_is_a_sentence(memprof: Command, tmp_path: Path) -> None:
    async def ask(client: ClientSession) -> None:
        tools = (await client.list_tools()).tools
        names = {"run", "compare", "fit", "check", "plan", "watch", "advise", "show", "explain", "import_programs"}
        assert {tool.name for tool in tools} == {*names, "list_names", "more"}
        for tool in tools:
            assert tool.description
            for name, described in tool.input_schema["properties"].items():
                assert described["description"], (tool.name, name)
                assert described["examples"], (tool.name, name)
                assert "default" in described or name in tool.input_schema["required"]
        running = {tool.name for tool in tools if "the user's code" in tool.description}
        assert running == {"run", "compare", "fit", "check", "plan", "watch"}
        for arguments, sentence in (
            ({"step": "mlpp"}, "did you mean 'mlp'"),
            ({"step": "mlp", "target": "cpu", "settings": ["sed=3"]}, "sed"),
            ({"step": "--help"}, "is an option"),
            ({"step": "mlp\0"}, "an argument has 4 characters and a NUL"),
            ({"step": "m" * 200_000}, "an argument has 200,000 characters"),
        ):
            result = await client.call_tool("run", arguments)
            assert result.is_error
            assert sentence in text(result)
            assert "Traceback" not in text(result)

    with_server(memprof, ask)


def test_no_answer_is_longer_than_a_page_and_pages_make_the_whole(memprof: Command) -> None:
    async def ask(client: ClientSession) -> None:
        found = await client.call_tool("list_names", {"kind": "techniques"})
        handle = text(found).rpartition("handle='")[2].partition("'")[0]
        pages = [text(found)]
        while "more(handle=" in pages[-1]:
            pages.append(text(await client.call_tool("more", {"handle": handle, "page": len(pages) + 1})))
        assert max(map(len, pages)) <= 1500
        lines = [line for page in pages for line in page.splitlines() if "more(handle=" not in line]
        assert "\n".join(lines) == memprof("list", "techniques").stdout.strip()
        for wrong in ({"handle": "answer-99"}, {"handle": handle, "page": 99}):
            assert (await client.call_tool("more", wrong)).is_error

    with_server(memprof, ask)


def test_user_code_is_refused_where_the_configuration_says_so(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text("raise SystemExit('it ran')")

    async def ask(client: ClientSession) -> None:
        for tool, arguments in (
            ("run", {"step": "train.py:step_spec"}),
            ("check", {"step": "train.py:step_spec"}),
            ("compare", {"step": "train:step_spec", "rows": ["baseline"]}),
            ("watch", {"script": "train.py"}),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert "which this server rejects" in text(result)
        assert not (await client.call_tool("list_names", {})).is_error

    with_server(memprof, ask, "--no-user-code")


SLOW = """
import os, pathlib, time
pathlib.Path(f"{os.getpid()}.started").touch()
time.sleep(600)
"""


@pytest.mark.slow
def test_requests_are_queued_and_end_with_the_server(memprof: Command) -> None:
    (memprof.folder / "slow.py").write_text(SLOW)
    most = len(os.sched_getaffinity(0))

    def steps() -> list[str]:
        """The processes that import the step."""
        return [path.stem for path in memprof.folder.glob("*.started") if Path("/proc", path.stem).exists()]

    async def request(client: ClientSession) -> None:
        with pytest.raises(MCPError, match="Connection closed"):
            await client.call_tool("run", {"step": "slow.py:step", "target": "cpu"})

    async def ask(client: ClientSession) -> None:
        async with anyio.create_task_group() as requests:
            for _ in range(most + 3):
                requests.start_soon(request, client)
            await anyio.to_thread.run_sync(lambda: wait_until(lambda: len(steps()) == most))
            commands = {pid for pid in processes_with(memprof.temp_folder) if b"die_with" in _command_line(pid)}
            assert len(commands) == most
            (server,) = {parent_of(pid) for pid in commands}
            os.kill(server, signal.SIGKILL)
            await anyio.to_thread.run_sync(lambda: wait_until(lambda: not steps()))

    with_server(memprof, ask)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
