"""The process of a watched script: it runs it as `python` would, and has JAX watched as soon as that is imported.

    python script.py FOLDER OPTIONS train.py --its own arguments
    python script.py FOLDER OPTIONS -m package.train --its own arguments

It imports nothing that the script might want to import in its own way: JAX reads the environment when it is imported,
and scripts set it before.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import pkgutil
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import Any, NoReturn

_AS_MODULE = "-m"


def main() -> NoReturn:
    """Run the script of the command line."""
    folder, options, name, *arguments = sys.argv[1:]
    watching = _Watching(folder, json.loads(options))
    watching.start()
    try:
        if name == _AS_MODULE:
            name, *arguments = arguments
            sys.argv, sys.path[0] = [name, *arguments], os.getcwd()
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = [name, *arguments], os.path.dirname(os.path.realpath(name))
            _run_path(name)
    except SystemExit:
        watching.end(None)
        raise
    except BaseException as error:
        watching.end(error)
        if isinstance(error, KeyboardInterrupt) and watching.has_seen_enough:
            sys.exit(0)
        _die(error)
    watching.end(None)
    sys.exit()


def _run_path(name: str) -> None:
    """Run a script, with its name as given in `sys.argv` and its whole path in `__file__`."""
    if pkgutil.get_importer(name) is not None:  # a folder or an archive with a __main__.py
        runpy.run_path(name, run_name="__main__")
        return
    path = os.path.abspath(name)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    exec(code, vars(module))


class _Watching:
    """The watcher, from the import of JAX on."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self._folder, self._options = folder, options
        self._process = os.getpid()
        self._watcher: Any = None

    @property
    def has_seen_enough(self) -> bool:
        """Whether the command has asked the script to end, since its time is over."""
        return os.path.exists(os.path.join(self._folder, "enough"))

    def start(self) -> None:
        sys.meta_path.insert(0, _AfterImport("jax", self._start_watcher))

    def _start_watcher(self) -> None:
        from memprof.capture.watching.hook import Watcher

        self._watcher = Watcher(self._folder, **self._options)
        self._watcher.start()

    def end(self, error: BaseException | None) -> None:
        """Write down how the script ended, unless this is a fork of it."""
        if self._watcher is not None and os.getpid() == self._process:
            self._watcher.end(error, "" if error is None else "".join(_lines(error)))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function when a module has been imported, once."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._is_looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name or self._is_looking:
            return None
        self._is_looking = True  # not again, for what is looked up here
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                sys.meta_path.remove(self)  # not before: many libraries look a module up and do not import it yet
                execute(module)
                self._then()

            loader.exec_module = exec_module
        return spec


def _die(error: BaseException) -> NoReturn:
    """End as Python does with an error that nobody caught, without the frames of this file in its traceback."""
    sys.excepthook(type(error), error.with_traceback(_trace_of_script(error)), error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    sys.exit(1)


def _lines(error: BaseException) -> list[str]:
    return traceback.format_exception(type(error), error, _trace_of_script(error))


def _trace_of_script(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
