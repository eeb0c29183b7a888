"""A project's own defaults: the table `[tool.memprof]` of its pyproject.toml, found upwards from the working folder.

    [tool.memprof]
    target = "a100-80gb"
    memory = "70GiB"
    reserve = "2GiB"
    pool = "0.9"
    format = "markdown"
    editor = "cursor://file{file}:{line}"

What stands on the command line is stronger. A default never gets in the way: it is left out where the command line says
another thing, such as steps to run where the target is one to compile for.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memprof.errors import MemprofError, unknown_name

# The commands that each is for: `trace` runs the step on the device that is here.
_COMMANDS = {
    "target": ("run", "compare", "fit", "check"),
    "memory": ("fit",),
    "reserve": ("fit",),
    "pool": ("run", "compare", "fit", "check", "watch", "advise", "show", "explain"),
    "format": ("run", "compare", "fit", "check", "advise", "show"),
    "editor": ("run", "show"),
}
# What, where it is given, says another thing than a default does.
_YIELDS_TO = {"target": ("steps", "fits"), "memory": ("target",), "format": ("output", "full", "verbose", "update")}


def project_defaults(command: str, given: Mapping[str, Any]) -> dict[str, str]:
    """The defaults of the project for a command.

    Args:
        given: what stands on the command line, by the names of parameters.

    Raises:
        MemprofError: the table is not what it should be, in one sentence.
    """
    if not any(command in commands for commands in _COMMANDS.values()):
        return {}
    path, table = _table_upwards()
    for key, value in table.items():
        if key not in _COMMANDS:
            raise MemprofError(f"{path}: {unknown_name('key of [tool.memprof]', key, _COMMANDS)}")
        if not isinstance(value, str) or not value.strip():
            raise MemprofError(
                f"{path}: {key} of [tool.memprof] is {value!r}, but a string was expected, as on --{key}"
            )
    chosen = {
        key: value
        for key, value in table.items()
        if command in _COMMANDS[key] and not any(name in given for name in (key, *_YIELDS_TO.get(key, ())))
    }
    for key, value in chosen.items():
        try:
            _check(key, value)
        except MemprofError as error:
            raise MemprofError(f"{path}: {key} of [tool.memprof]: {error}") from error
    return chosen


def _table_upwards() -> tuple[Path, dict[str, Any]]:
    """The table that is nearest; an empty one where there is none."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            if b"tool.memprof" not in path.read_bytes():
                continue  # it is not for us to complain of
            raise MemprofError(f"{path} is not valid TOML, so [tool.memprof] cannot be read: {error}") from error
        tools = content.get("tool")
        table = tools.get("memprof") if isinstance(tools, dict) else None
        if table is not None and not isinstance(table, dict):
            raise MemprofError(f"{path}: tool.memprof is {table!r}, but a table was expected: [tool.memprof]")
        if table is not None:
            return path, table
    return here, {}


def _check(key: str, value: str) -> None:
    """Raises `MemprofError` for what the option would not take."""
    if key == "target":
        from memprof.sources.jax.targets.resolve import resolve_or_local

        resolve_or_local(value)
    elif key == "format":
        from memprof.reports.format import format_named

        format_named(value)
    elif key == "editor":
        from memprof.reports.options import editor_link

        editor_link(value)
    elif key == "pool":
        from memprof.sources.pool_settings import parse_pool

        parse_pool(value)
    else:
        from memprof.amounts import parse_bytes, parse_share

        if key == "memory" or (value not in ("0", "none") and parse_share(value) is None):
            parse_bytes(value)
