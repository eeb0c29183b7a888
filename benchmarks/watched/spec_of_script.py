"""The same step given as a spec: run a script until it calls a function for the first time, and profile that call.

    python -m benchmarks.watched.spec_of_script FUNCTION CAPTURE SCRIPT ARGS...

It has nothing in common with how `memprof watch` finds programs: the jits are replaced by name before the script
imports them, and the call goes to `memprof.profile`. Exits with 0 when the capture is written.
"""

from __future__ import annotations

import functools
import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

_JITS = (("jax", "jit"), ("jax", "pmap"), ("flax.nnx", "jit"), ("equinox", "filter_jit"))
_JAX_JIT = jax.jit
_FRAMEWORKS = ("flax", "equinox")


def main() -> None:
    """Profile one function of a script."""
    function, capture, script, *arguments = sys.argv[1:]
    for module, name in _JITS:
        _replace(module, name, function, Path(capture))
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
    sys.exit(1)


def _replace(module_name: str, name: str, function: str, capture: Path) -> None:
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    original = getattr(module, name)

    @functools.wraps(original)
    def jit(fn: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals["__name__"].split(".")[0] in _FRAMEWORKS:  # the jit inside of theirs
            return original(*((fn,) if fn is not None else ()), *args, **kwargs)
        if fn is None or not callable(fn):
            return lambda fn: jit(fn, *args, **kwargs)
        jitted = mapped = original(fn, *args, **kwargs)
        if getattr(fn, "__name__", "") != function:
            return jitted
        if name == "pmap":  # as a user would give it: what it maps over devices, in a jit that donates the same
            outer = functools.wraps(fn)(lambda *given, **named: mapped(*given, **named))
            jitted = _JAX_JIT(outer, donate_argnums=kwargs.get("donate_argnums", ()))
        return _profiled(jitted, capture)

    setattr(module, name, jit)


def _profiled(jitted: Callable[..., Any], capture: Path) -> Callable[..., Any]:
    """A function that writes a capture of its call instead of doing anything."""

    @functools.wraps(jitted)
    def profiled(*args: Any, **kwargs: Any) -> None:
        import memprof

        memprof.profile(jitted, *args, target="cpu", complete=True, **kwargs).save(capture, overwrite=True)
        raise SystemExit(0)

    profiled.lower = profiled  # type: ignore[attr-defined] # for a script that compiles ahead of time
    return profiled


if __name__ == "__main__":
    main()
