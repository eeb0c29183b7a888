"""`memprof mcp`: the commands as tools of the Model Context Protocol, for agents that work on training code.

The server talks over stdin and stdout; its tools are in `mcp_tools.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from memprof.errors import MemprofError
from memprof.version import __version__

if TYPE_CHECKING:
    from mcp.server import MCPServer

_INSTRUCTIONS = (
    "Accounts for every byte of device memory of a JAX training step, by compiling it for a GPU that may be absent. "
    "A step is a built-in workload (transformer, mlp, decoder) or FILE.py:NAME, where NAME is a function that "
    "returns memprof.StepSpec(train_step, arguments). `footprint` decides whether a step fits JAX's pool, 75% of the "
    "card by default; `live peak` is the most memory that is live at once. A long answer ends in a handle for the "
    "tool `more`."
)


def mcp(
    user_code: Annotated[
        bool,
        typer.Option(
            "--user-code/--no-user-code",
            envvar="MEMPROF_MCP_USER_CODE",
            help="Whether tools may import FILE.py:NAME and run scripts.",
        ),
    ] = True,
) -> None:
    """Serve the commands to agents over the Model Context Protocol.

    An agent's configuration starts it with the command `memprof` and the argument `mcp`; docs/agents.md has examples.

        memprof mcp
    """
    server(with_user_code=user_code).run("stdio")


def server(*, with_user_code: bool = True) -> MCPServer[Any]:
    """The server with its tools.

    Args:
        with_user_code: whether its tools may run code of the user.

    Raises:
        MemprofError: what the extra `mcp` installs is not there.
    """
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise MemprofError(
            'serving agents needs the MCP SDK: install it with pip install "jax-memprof[mcp]"'
        ) from error
    from memprof.profiler_cli.mcp_tools import add_tools

    made = MCPServer("memprof", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    add_tools(made, with_user_code=with_user_code)
    return made
