"""The entry point: the command line, with JAX imported beside it where a built-in workload is to be compiled.

The commands and their libraries take a while to import. Where a step is compiled JAX is imported in another process
anyway (see `fork_server.py`), which takes longer still; so that one is started first of all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_COMPILING = frozenset({"run", "compare", "fit", "check", "trace", "export"})
_HELP = frozenset({"-h", "--help"})
_WORKLOADS = Path(__file__).parents[1] / "workloads" / "models"


def main(*, verdict_first: bool = False) -> NoReturn:
    """Run the command line and exit.

    Args:
        verdict_first: whether reports begin with their verdict: an agent sees the first page of them.
    """
    if _compiles_workload(sys.argv[1:]):
        from memprof.sources.jax.processes.forked_process import SERVER

        SERVER.prepare()
    from memprof.profiler_cli.command_line import run_and_exit
    from memprof.profiler_cli.render import put_verdict_first

    if verdict_first:
        put_verdict_first()
    run_and_exit()


def _compiles_workload(arguments: Sequence[str]) -> bool:
    """Whether a workload of ours is named; the user's own code has a process that imports JAX itself."""
    is_asked = bool(arguments) and arguments[0] in _COMPILING and _HELP.isdisjoint(arguments)
    if "torch" in arguments and "jax" not in arguments:  # --framework torch: nothing of JAX is imported
        return False
    return is_asked and any(name.isidentifier() and os.path.isdir(_WORKLOADS / name) for name in arguments[1:])


if __name__ == "__main__":
    main()
