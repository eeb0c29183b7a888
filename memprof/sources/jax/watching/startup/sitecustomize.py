"""Startup module that Python imports before it runs a watched script in the usual way.

The folder of this file is the first entry of PYTHONPATH, and `MEMPROF_WATCH` names the work folder. Both are removed
from `os.environ`, so the script sees the command's environment. The script's child processes are watched too, unless it
gives them another environment. The watcher starts when the script has imported JAX. Until then this module imports
nothing else, because the script may have a module with the name of a library module.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` would import other modules
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PAGE = "page"  # see `shared_page.py`
_MODULE = "jax"


class _AfterImport:
    """A finder of modules that starts the watcher when JAX has been imported."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._is_looking = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name != _MODULE or self._is_looking:
            return None
        self._is_looking = True  # another finder may search for the same name
        try:
            found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
            spec = next((each for each in found if each is not None), None)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            self._start_after(spec.loader)
        return spec

    def _start_after(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            del loader.exec_module  # a later reload is not intercepted
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._start()

        # Python omits frames with this file name from the traceback of an import.
        exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
        loader.exec_module = exec_module

    def _start(self) -> None:
        try:
            from memprof.sources.jax.watching.hook import start_watcher

            start_watcher(self._folder)
        except Exception as error:
            try:
                with open(os.path.join(self._folder, _PAGE), "r+b") as page:
                    page.write(f"the watcher did not start: {type(error).__name__}: {error}\n".encode()[:1000])
            except Exception:
                return  # the script continues despite any error here


def _begin() -> None:
    folder = os.environ.pop("MEMPROF_WATCH", None)
    paths = os.environ.get("PYTHONPATH", "")
    before, _, rest = paths.partition(os.pathsep)
    if folder is None or os.path.abspath(before) != _HERE:
        return
    if rest:
        os.environ["PYTHONPATH"] = rest
    else:
        del os.environ["PYTHONPATH"]
    os.putenv("MEMPROF_WATCH", folder)  # for the script's child processes; `os.environ` does not show it
    os.putenv("PYTHONPATH", paths)
    sys.path[:] = [entry for entry in sys.path if entry != before]
    sys.meta_path.insert(0, _AfterImport(folder))
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # type: ignore[import-not-found] # noqa: F401 - the environment's own module; `site` ignores it if it is missing


_begin()
