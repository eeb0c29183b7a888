"""The watcher inside a script: it records traces, compiles, and the arrays on the device.

The script has priority: an error of the watcher is noted (see `shared_page.py`), and the script continues.
"""

from __future__ import annotations

import _thread
import atexit
import errno
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import msgspec

from memprof.analysis.records.watched import Ending, SeenCall, SeenCompile
from memprof.plugin_complaints import show_plugin_complaints
from memprof.sources.jax.compile import LoweredStep, lower_step
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.processes.handover import Handover
from memprof.sources.jax.processes.task import DUMP_FOLDER, PLAN_TASK_FILE, encoded_task
from memprof.sources.jax.roles.arguments import ends_of
from memprof.sources.jax.roles.by_use import follow
from memprof.sources.jax.running.live_arrays import count_seconds_from, live_arrays, since_start, type_text
from memprof.sources.jax.targets.mesh import target_of_step
from memprof.sources.jax.targets.resolve import resolve_asked
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.flops import has_backward_pass
from memprof.sources.jax.tracing.jitting import JittedStep, TracedStep, inside_of, is_array, is_array_like, jit_step
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.user_traceback import first_line
from memprof.sources.jax.watching import records
from memprof.sources.jax.watching.shared_page import SharedPage
from memprof.sources.jax.xla import xla_adapter
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN

_MAX_TEXT = 200
_PLAN = "_after_optimizations"  # part of the names of the dump's files to keep
_END_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 30.0
_MIN_GROWTHS = 3
_MAX_HOLDERS_LOOKED_FOR = 5


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def start_watcher(folder: str) -> None:
    """Watch this process from now on, with the options in a work folder."""
    show_plugin_complaints()
    Watcher(Path(folder), **json.loads((Path(folder) / records.OPTIONS).read_bytes())).start()


class Watcher:
    """Recorder of the script's calls, compiles and arrays, in a work folder.

    Args:
        target: the target to compile each program for; None to keep the programs that run.
        num_programs: number of the script's own programs after which to stop it.
        may_end: whether to stop the script at its first training step if `num_programs` is None.
        started: start time of the script by the monotonic clock.
    """

    def __init__(
        self, folder: Path, *, target: str | None, num_programs: int | None, may_end: bool, started: float
    ) -> None:
        count_seconds_from(started)
        self._folder = folder
        self._target = resolve_asked(target or "local")
        self._is_instead = target is not None
        self._num_programs = num_programs
        self._may_end = may_end
        self._process = os.getpid()
        self._script_process = int((folder / records.PROCESS).read_text(encoding="utf-8"))
        self._page = SharedPage(folder)
        self._counter = count()
        self._num_seen = 0
        self._jits: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._pause = _FIRST_PAUSE_SECONDS
        self._is_over = threading.Event()
        self._sampling = _thread.allocate_lock()
        self._has_sampler = False

    def start(self) -> None:
        """Watch from now on."""
        jit_adapter.hide_from_tracebacks(__file__)
        jit_adapter.watch_compiles(self._traced, self._compiled)
        atexit.register(self._harmless, "the end", self._end)

    def _harmless(
        self, what: str, do: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs
    ) -> _Result | None:
        """Run an action of the watcher, and note its error, unless it is Ctrl-C or from the script's signal handler."""
        try:
            return do(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or _is_of_signal_handler(error):
                raise
            self._page.note(what, error)
            return None

    def _end(self) -> None:
        """Record the end of the script. Python keeps an uncaught error in `sys.last_value`."""
        if os.getpid() != self._process:
            return
        self._is_over.set()
        self._sampling.acquire(timeout=_END_SECONDS)  # a thread inside JAX when Python exits crashes the process
        if self._process != self._script_process:  # a process that the script started
            return
        error: BaseException | None = getattr(sys, "last_value", None)
        shown = "" if error is None else "".join(traceback.format_exception(error))
        is_out_of_memory = isinstance(error, MemoryError) or xla_adapter.is_out_of_memory(_text(error))
        live = live_arrays()
        if is_out_of_memory:
            largest = [group.type for group in live.groups[:_MAX_HOLDERS_LOOKED_FOR]]
            live = live_arrays(find_holders_of=largest, error=error)
        records.write(self._folder / records.END, Ending(error=shown, is_out_of_memory=is_out_of_memory, live=live))

    def _start_sampler(self) -> None:
        """Start the thread that samples the arrays, once, with the first program.

        From then on, JAX has its own threads too. `threading` does not list this thread, because scripts wait for
        listed threads.
        """
        if self._has_sampler or os.getpid() != self._process:
            return
        self._has_sampler = True
        self._sampling.acquire()
        try:
            _thread.start_new_thread(self._sample_to_end, ())
        except BaseException:
            self._sampling.release()
            raise

    def _sample_to_end(self) -> None:
        try:
            self._harmless("the arrays on the device", self._sample, self._is_over)
        finally:
            self._sampling.release()

    def _sample(self, is_over: threading.Event) -> None:
        """Sample the arrays at intervals, using at most a hundredth of the time."""
        file, before = self._folder / records.LIVE.format(os.getpid()), None
        growing: dict[str, int] = {}  # number of consecutive samples in which a type's count grew
        while not is_over.wait(self._pause):
            started = time.thread_time()
            found = live_arrays()
            self._pause = min(_LONGEST_PAUSE_SECONDS, max(1.1 * self._pause, 100 * (time.thread_time() - started)))
            wanted = [kind for kind, times in growing.items() if times == _MIN_GROWTHS]
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
        """Record a traced call, and return its id, or None for JAX's own calls."""
        call = self._harmless("a call", self._call, fn, args, kwargs)
        if call is None:
            return None
        self._harmless("a call", records.write, self._folder / records.CALL.format(call.id), call)
        self._pause = _FIRST_PAUSE_SECONDS  # a new program has new arrays
        self._num_seen += 1
        if self._is_instead:  # otherwise, wait for the compile
            self._stop_if_enough(differentiates=call.differentiates)
        return call.id

    def _call(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SeenCall | None:
        if jit_adapter.is_of_jax(fn):
            return None
        call = SeenCall(id=self._next(), function=_name(fn), place=_place(fn), jit=self._number_of(fn._fun))
        try:
            outer = jit_adapter.outer_call(fn) or (fn, args, kwargs)
            call = replace(call, function=_name(outer[0]), place=_place(outer[0]))
            return self._followed(call, outer, fn, args, kwargs)
        except Exception as error:
            if _is_of_signal_handler(error):
                raise
            return replace(call, not_followed=first_line(error) or type(error).__name__)

    def _followed(
        self, call: SeenCall, outer: tuple[Any, Any, Any], fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> SeenCall:
        """Trace and lower the call as `memprof.profile` does, which reuses JAX's cached result."""
        if not any(map(is_array_like, jax.tree.leaves((args, dict(kwargs))))):
            return replace(call, results=_results(fn.trace(*args, **kwargs)))  # without arguments that could have roles
        shown, given, given_kwargs = outer
        spec = StepSpec(shown, tuple(given), kwargs=dict(given_kwargs), workload=call.function)
        step = jit_step(spec)
        statics = _statics(step, jit_adapter.jit_options(fn)) if shown is fn else _static_leaves(step)
        if shown is not fn:
            step, spec = inside_of(step, fn, args, kwargs), replace(spec, fn=fn)  # pmap's inner jit has the shardings
        lowered = lower_step(spec, target_of_step(spec, self._target), lambda stage: None, step)
        traced, handover = lowered.traced, msgspec.msgpack.encode(Handover.of(lowered.capture, None, ""))
        self._harmless("a call", records.write_bytes, self._folder / records.STEP.format(call.id), handover)
        if self._is_instead:
            self._harmless("a program", self._keep_program, call, lowered)
        avals = jit_adapter.argument_avals(traced.traced)
        differentiates = has_backward_pass(traced.jaxpr)
        return replace(
            call,
            arguments={path: _aval_text(aval) for path, aval in zip(traced.paths, avals, strict=True)},
            statics=statics,
            results=_results(traced.traced),
            differentiates=differentiates,
            updates=differentiates and _updates(traced),
        )

    def _keep_program(self, call: SeenCall, lowered: LoweredStep) -> None:
        """Write a program and its compile task for the command, which compiles it for another target."""
        folder = self._folder / records.COMPILING.format(self._next())
        folder.mkdir()
        lowered.program.write(folder)
        (folder / PLAN_TASK_FILE).write_bytes(encoded_task(lowered.plan_task(TO_THE_PLAN)))
        seen = SeenCompile(name=f"jit_{call.function}", call=call.id, began=since_start(), live=live_arrays())
        records.write(folder / records.COMPILE, seen)

    def _stop_if_enough(self, *, differentiates: bool = False) -> None:
        """Stop the script if the watcher has seen all it needs. The command then ends the script's process."""
        is_number = self._num_programs is not None and self._num_seen >= self._num_programs
        if not (is_number or (self._num_programs is None and self._may_end and differentiates)):
            return
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        with suppress(ProcessLookupError):  # the script has ended, and the command does not wait for this process
            os.kill(self._script_process, 0)
            if self._page.mark_stop():
                os.kill(self._script_process, signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)

    def _compiled(self, name: str, call: str | None, compile_it: Callable[[Mapping[str, Any]], Any]) -> Any:
        """Compile with a dump, and record the compile."""
        self._harmless("the arrays on the device", self._start_sampler)
        begun = None if self._is_instead else self._harmless("a compile", self._begin_compile, name, call)
        if begun is None:
            return compile_it({})
        seen, folder = begun
        started = time.monotonic()
        try:
            executable = compile_it(xla_adapter.dump_options(folder / DUMP_FOLDER))
        except Exception as error:
            self._harmless("a compile", self._end_compile, replace(seen, failed=first_line(error)), folder)
            raise
        self._harmless("a compile", self._end_compile, replace(seen, seconds=time.monotonic() - started), folder)
        if call:
            self._stop_if_enough()
        return executable

    def _begin_compile(self, name: str, call: str | None) -> tuple[SeenCompile, Path]:
        """Record the begin of a compile, and return the record and its folder.

        Raises:
            OSError: XLA could not write a dump.
        """
        folder = self._folder / records.COMPILING.format(self._next())
        folder.mkdir()
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        free = shutil.disk_usage(folder).free
        if free < records.MIN_FREE_BYTES or resource.RLIM_INFINITY != most < records.MIN_FREE_BYTES:
            raise OSError(
                errno.ENOSPC, "not enough space for XLA's plan in the folder for temporary files", str(folder)
            )
        seen = SeenCompile(name=name, call=call, began=since_start(), live=live_arrays() if call else None)
        records.write(folder / records.COMPILE, seen)
        return seen, folder

    def _end_compile(self, seen: SeenCompile, folder: Path) -> None:
        records.write(folder / records.COMPILE, seen)
        for file in (folder / DUMP_FOLDER).iterdir():
            if _PLAN not in file.name:
                file.unlink()

    def _number_of(self, fun: Any) -> int:
        """Return a number for a jitted function; its address may have belonged to an earlier function."""
        try:
            return self._jits.setdefault(fun, next(self._counter))
        except TypeError:  # it cannot be hashed or weakly referenced
            return id(fun)

    def _next(self) -> str:
        return f"{os.getpid()}-{next(self._counter)}"  # forks have separate counters


def _is_of_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the script raised the error, which can happen at any line of Python."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _text(error: BaseException | None) -> str:
    """Return the message of an error, or an empty string if its `__str__` raises."""
    try:
        return str(error)
    except BaseException:
        return ""


def _name(fn: Any) -> str:
    inner = jit_adapter.function_of(fn)
    return str(own(inner, "__name__") or type(inner).__name__)[:_MAX_TEXT]


def _place(fn: Any) -> str:
    code = own(jit_adapter.function_of(fn), "__code__")
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _statics(step: JittedStep, options: Any) -> dict[str, str]:
    """Return the static arguments of a `jax.jit`."""
    by_number = {step.names[number]: step.args[number] for number in options.static_argnums if number < len(step.args)}
    by_name = {name: step.kwargs[name] for name in options.static_argnames if name in step.kwargs}
    return {name: repr(value)[:_MAX_TEXT] for name, value in {**by_number, **by_name}.items()}


def _static_leaves(step: JittedStep) -> dict[str, str]:
    """Return the leaves that are not arrays in the arguments of a framework's jit, which treats them as static."""
    leaves = (
        (name + jax.tree_util.keystr(keys), leaf)
        for name, argument in step.arguments.items()
        for keys, leaf in jax.tree_util.tree_leaves_with_path(argument)
    )
    return {path: repr(leaf)[:_MAX_TEXT] for path, leaf in leaves if not is_array(leaf)}


def _results(traced: Any) -> tuple[str, ...]:
    return tuple(type_text(aval) for aval in traced.jaxpr.out_avals)


def _updates(traced: TracedStep) -> bool:
    return any(use.is_parameter for use in follow(traced.jaxpr, ends_of(traced, traced.paths, traced.paths)).uses)


def _aval_text(aval: Any) -> str:
    return f"{type_text(aval)}{' (weak type)' if getattr(aval, 'weak_type', False) else ''}"
