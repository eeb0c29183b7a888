"""The command line: runs the app, and turns whatever ends it into a message and an exit code.

Data goes to stdout, everything else to stderr. A user never sees a traceback of ours for their mistake; their own is
shown when it is their code that failed.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import typer

from memprof.errors import InternalError, Interrupted, MemprofError, WorkloadError
from memprof.files import impossible_name
from memprof.profiler_cli.app import app
from memprof.profiler_cli.console import ExitCode, finish_streams, prepare_streams, say_error, say_lines

# What the system says where a disk is full or a limit reached: no defect of ours, and no traceback explains it.
_NOT_OURS = (
    errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC,
    errno.EPERM, errno.EROFS,
)  # fmt: skip


class _Signalled(Interrupted):
    """Ctrl-C or SIGTERM arrived: unwind, so that children and temporary files go. Typer knows nothing of it."""

    def __init__(self, exit_code: ExitCode) -> None:
        self.exit_code = exit_code


_arrived: list[_Signalled] = []  # at most one
_REPEAT_SECONDS = 1.0


def run_and_exit() -> NoReturn:
    """Run what `sys.argv` says, and exit."""
    signal.signal(signal.SIGINT, _signal_handler(ExitCode.INTERRUPTED))
    signal.signal(signal.SIGTERM, _signal_handler(ExitCode.TERMINATED))
    prepare_streams()
    ended = _run()
    exit_code = ended if finish_streams() else ended or ExitCode.WRONG_USAGE
    script = sys.modules.get("memprof.workloads.user.script")
    if script is not None and script.is_standing_still():
        os._exit(exit_code)
    sys.exit(exit_code)


def _run() -> int:
    try:
        _check_working_folder()
        ended = _run_app()
    except SystemExit as ended_early:
        return ended_early.code if isinstance(ended_early.code, int) else ExitCode.FINE
    except _Signalled as signalled:
        _ignore_signals()
        say_error("interrupted")
        return signalled.exit_code
    except WorkloadError as error:
        if error.details:
            say_lines(error.details)
        say_error(str(error))
        return ExitCode.WORKLOAD_FAILED
    except InternalError as error:
        say_error(f"{error}. This is a defect of memprof or of this file; please report it")
        return ExitCode.DEFECT
    except MemprofError as error:
        say_error(str(error))
        return ExitCode.WRONG_USAGE
    except typer.TyperException as error:  # an option that Typer does not know, or a value that it does not take
        return _wrong_options(error)
    except OSError as error:
        if (
            error.errno == errno.ENAMETOOLONG and error.filename is not None
        ):  # pathlib raises it wherever a name is used
            say_error(str(impossible_name(os.fsdecode(error.filename), error)))
            return ExitCode.WRONG_USAGE
        if error.errno not in _NOT_OURS:
            return _defect()
        place = "" if error.filename is None else f" ({error.filename})"
        say_error(f"the system has no space for this, or does not allow it: {error.strerror}{place}")
        return ExitCode.WRONG_USAGE
    except Exception:
        return _defect()
    return ended if isinstance(ended, int) else ExitCode.FINE


def _run_app() -> Any:
    """Run the app.

    After a signal, the command counts as interrupted however it ends: the user's code and libraries may replace the
    exception, or drop it.
    """
    try:
        return app(standalone_mode=False, prog_name="memprof")
    finally:
        if _arrived:
            raise _arrived[0]


def _wrong_options(error: Any) -> int:
    """Tell what is wrong with the options, and where the right ones stand."""
    message = error.format_message().replace("Value error, ", "")  # the name of Python's error, by pydantic
    if type(error).__name__ == "NoArgsIsHelpError":  # then its message is the help
        say_lines(message)
        return ExitCode.WRONG_USAGE
    context = error.ctx
    command = context.command_path if context is not None else "memprof"
    sentence = " ".join(message.split()).rstrip(".")  # Typer gives each choice of an argument a line
    say_error(f"{sentence}; see `{command} --help`")
    return ExitCode.WRONG_USAGE


def _defect() -> int:
    say_lines(traceback.format_exc())
    say_error("memprof itself failed; please report this with the lines above")
    return ExitCode.DEFECT


def _check_working_folder() -> None:
    """Raises `MemprofError` where the folder that the command runs in is gone."""
    try:
        os.getcwd()
    except OSError as error:
        raise MemprofError("the working folder no longer exists; change to another one") from error


def _signal_handler(exit_code: ExitCode) -> Callable[[int, FrameType | None], None]:
    def handle(_signal: int, _frame: FrameType | None) -> None:
        if _is_unwinding():  # cleaning up takes a moment; an impatient second Ctrl-C must not cut it short
            return
        if not _arrived:
            _arrived.append(_Signalled(exit_code))
            if sys.platform != "win32":  # Python drops an exception that is raised while it deletes an object
                signal.signal(signal.SIGALRM, handle)
                signal.setitimer(signal.ITIMER_REAL, _REPEAT_SECONDS, _REPEAT_SECONDS)
        raise _arrived[0]

    return handle


def _is_unwinding() -> bool:
    """Whether the interrupted code handles a signal: it is in a `finally` or `except` block, or in `__exit__`."""
    handled = sys.exception()
    while handled is not None:
        if any(handled is each for each in _arrived):
            return True
        handled = handled.__context__
    return False


def _ignore_signals() -> None:
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
