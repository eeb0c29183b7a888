"""Inside of a watched script: what it traces, what it compiles, and what is on the device meanwhile, is written down.

The script comes first. Whatever fails here is written down too, and the script goes on.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import jax
import msgspec

from memprof.analysis.records.watched import Ending, SeenCall, SeenCompile
from memprof.capture.compile import trace_call
from memprof.capture.own_attributes import own
from memprof.capture.processes.handover import Handover
from memprof.capture.processes.task import DUMP_FOLDER, PLAN_TASK_FILE, encoded_task
from memprof.capture.roles.arguments import ends_of
from memprof.capture.roles.by_use import follow
from memprof.capture.running.live_arrays import live_arrays, since_start, type_text
from memprof.capture.targets.mesh import target_of_step
from memprof.capture.targets.resolve import resolve_asked
from memprof.capture.tracing import jit_adapter
from memprof.capture.tracing.jitting import JittedStep, TracedStep, inside_of, is_array, is_array_like, jit_step
from memprof.capture.tracing.step import StepSpec
from memprof.capture.user_traceback import first_line
from memprof.capture.watching import records
from memprof.capture.xla import xla_adapter
from memprof.capture.xla.portable_program import PlanTask, PortableProgram

_MOST_TEXT = 200
_PLAN = "_after_optimizations"  # what is kept of a dump
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 30.0
_GROWS_FOR_GOOD = 3
_MOST_HOLDERS_LOOKED_FOR = 5


class Watcher:
    """Writes what happens into a work folder.

    Args:
        target: what each program of the script is to be compiled for instead; None: what runs is what is kept.
        num_programs: the script is ended when so many programs of its own have been seen.
        may_end: whether else it is ended with its first training step.
    """

    def __init__(self, folder: str, *, target: str | None, num_programs: int | None, may_end: bool) -> None:
        self._folder = Path(folder)
        self._target = resolve_asked(target or "local")
        self._is_instead = target is not None
        self._num_programs = num_programs
        self._may_end = may_end
        self._counter = count()
        self._num_seen = 0
        self._jits: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._has_ended_it = False
        self._pause = _FIRST_PAUSE_SECONDS

    def start(self) -> None:
        """Watch from now on."""
        jit_adapter.watch_compiles(self._traced, self._compiled)
        is_over = threading.Event()
        sampling = threading.Thread(target=self._sample, args=(is_over,), name="memprof watch", daemon=True)
        sampling.start()

        def stop() -> None:
            is_over.set()
            sampling.join()

        # A thread that is in JAX when Python ends takes the process down; this waits for those of the script first.
        atexit.register(stop)

    def end(self, error: BaseException | None, shown: str) -> None:
        """Write down how the script ended.

        Args:
            error: what nobody caught; None: nothing, or its own `sys.exit`.
            shown: its traceback.
        """
        is_out_of_memory = isinstance(error, MemoryError) or xla_adapter.is_out_of_memory(str(error))
        live = live_arrays()
        if is_out_of_memory:
            largest = [group.type for group in live.groups[:_MOST_HOLDERS_LOOKED_FOR]]
            live = live_arrays(find_holders_of=largest, error=error)
        ending = Ending(error=shown, is_out_of_memory=is_out_of_memory, has_seen_enough=self._has_ended_it, live=live)
        records.write(self._folder / records.END, ending)

    def _sample(self, is_over: threading.Event) -> None:
        """Look at the arrays every now and then, and for no more than a hundredth of the time."""
        file, before = self._folder / records.LIVE, None
        growing: dict[str, int] = {}  # how often in a row there were more of a type
        while not is_over.wait(self._pause):
            started = time.thread_time()
            found = live_arrays()
            self._pause = min(_LONGEST_PAUSE_SECONDS, max(1.1 * self._pause, 100 * (time.thread_time() - started)))
            wanted = [kind for kind, times in growing.items() if times == _GROWS_FOR_GOOD]
            if wanted:
                found = live_arrays(find_holders_of=wanted)
            with file.open("ab") as lines:
                lines.write(msgspec.json.encode(found) + b"\n")
            if before is not None:
                counts = {group.type: group.count for group in before.groups}
                growing = {
                    group.type: growing.get(group.type, 0) + 1
                    for group in found.groups
                    if group.count > counts.get(group.type, 0)
                }
            before = found

    def _traced(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Write down a call that was traced; returns its id, or None for what JAX itself calls."""
        if jit_adapter.is_of_jax(fn):
            return None
        call = SeenCall(id=self._next(), function=_name(fn), place=_place(fn), jit=self._number_of(fn._fun))
        try:
            outer = jit_adapter.outer_call(fn) or (fn, args, kwargs)
            call = replace(call, function=_name(outer[0]), place=_place(outer[0]))
            call = self._followed(call, outer, fn, args, kwargs)
        except Exception as error:  # whatever it is, the script goes on
            call = replace(call, not_followed=first_line(error) or type(error).__name__)
        records.write(self._folder / records.CALL.format(call.id), call)
        self._pause = _FIRST_PAUSE_SECONDS  # for what comes now is new
        self._num_seen += 1
        if self._is_instead:  # else it is compiled first
            self._end_if_enough(differentiates=call.differentiates)
        return call.id

    def _followed(
        self, call: SeenCall, outer: tuple[Any, Any, Any], fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> SeenCall:
        """Trace and lower it as `memprof.profile` does, which JAX has just done too and finds again."""
        if not any(map(is_array_like, jax.tree.leaves((args, dict(kwargs))))):
            return replace(call, results=_results(fn.trace(*args, **kwargs)))  # no arguments that could have roles
        shown, given, given_kwargs = outer
        spec = StepSpec(shown, tuple(given), kwargs=dict(given_kwargs), workload=call.function)
        step = jit_step(spec)
        statics = _statics(step, jit_adapter.jit_options(fn)) if shown is fn else _static_leaves(step)
        if shown is not fn:
            step, spec = inside_of(step, fn, args, kwargs), replace(spec, fn=fn)  # that of pmap has the shardings
        known, traced, program = trace_call(spec, step, target_of_step(spec, self._target))
        (self._folder / records.STEP.format(call.id)).write_bytes(msgspec.msgpack.encode(Handover.of(known, None, "")))
        if self._is_instead:
            self._keep_program(call, *program())
        avals = jax.tree.leaves(traced.traced.in_avals)
        differentiates = any("transpose(" in scope for scope in known.flops_by_scope)
        return replace(
            call,
            arguments={path: _aval_text(aval) for path, aval in zip(traced.paths, avals, strict=True)},
            statics=statics,
            results=_results(traced.traced),
            differentiates=differentiates,
            updates=differentiates and _updates(traced),
        )

    def _keep_program(self, call: SeenCall, program: PortableProgram, task: PlanTask) -> None:
        """Leave to the command what it takes to compile a program for another target."""
        folder = self._folder / records.COMPILING.format(self._next())
        folder.mkdir()
        program.write(folder)
        (folder / PLAN_TASK_FILE).write_bytes(encoded_task(task))
        seen = SeenCompile(name=f"jit_{call.function}", call=call.id, began=since_start(), live=live_arrays())
        records.write(folder / records.COMPILE, seen)

    def _end_if_enough(self, *, differentiates: bool = False) -> None:
        """End the script where all that is wanted of it has been seen."""
        is_number = self._num_programs is not None and self._num_seen >= self._num_programs
        if is_number or (self._num_programs is None and self._may_end and differentiates):
            self._has_ended_it = True
            raise SystemExit(0)

    def _compiled(self, name: str, call: str | None, compile_it: Callable[[Mapping[str, Any]], Any]) -> Any:
        """Compile with a dump, and write down how that went."""
        if self._is_instead:
            return compile_it({})
        folder = self._folder / records.COMPILING.format(self._next())
        folder.mkdir()
        seen = SeenCompile(name=name, call=call, began=since_start(), live=live_arrays() if call else None)
        records.write(folder / records.COMPILE, seen)
        started = time.monotonic()
        try:
            executable = compile_it(xla_adapter.dump_options(folder / DUMP_FOLDER))
        except Exception as error:
            records.write(folder / records.COMPILE, replace(seen, failed=first_line(error)))
            raise
        records.write(folder / records.COMPILE, replace(seen, seconds=time.monotonic() - started))
        for file in (folder / DUMP_FOLDER).iterdir():
            if _PLAN not in file.name:
                file.unlink()
        if call:
            self._end_if_enough()
        return executable

    def _number_of(self, fun: Any) -> int:
        """A number for a function that was jitted; an address may be that of another one before it."""
        try:
            return self._jits.setdefault(fun, next(self._counter))
        except TypeError:  # it cannot be hashed, or not be referred to
            return id(fun)

    def _next(self) -> str:
        return f"{os.getpid()}-{next(self._counter)}"  # a fork counts on by itself


def _name(fn: Any) -> str:
    inner = jit_adapter.function_of(fn)
    return str(own(inner, "__name__") or type(inner).__name__)[:_MOST_TEXT]


def _place(fn: Any) -> str:
    code = own(jit_adapter.function_of(fn), "__code__")
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _statics(step: JittedStep, options: Any) -> dict[str, str]:
    """The static arguments of a `jax.jit`."""
    by_number = {step.names[number]: step.args[number] for number in options.static_argnums if number < len(step.args)}
    by_name = {name: step.kwargs[name] for name in options.static_argnames if name in step.kwargs}
    return {name: repr(value)[:_MOST_TEXT] for name, value in {**by_number, **by_name}.items()}


def _static_leaves(step: JittedStep) -> dict[str, str]:
    """What is no array in the arguments of a framework's jit, which takes it for static."""
    leaves = (
        (name + jax.tree_util.keystr(keys), leaf)
        for name, argument in step.arguments.items()
        for keys, leaf in jax.tree_util.tree_leaves_with_path(argument)
    )
    return {path: repr(leaf)[:_MOST_TEXT] for path, leaf in leaves if not is_array(leaf)}


def _results(traced: Any) -> tuple[str, ...]:
    return tuple(type_text(aval) for aval in jax.tree.leaves(traced.out_info))


def _updates(traced: TracedStep) -> bool:
    return any(use.is_parameter for use in follow(traced.jaxpr, ends_of(traced, traced.paths, traced.paths)).uses)


def _aval_text(aval: Any) -> str:
    return f"{type_text(aval)}{' (weak type)' if getattr(aval, 'weak_type', False) else ''}"
