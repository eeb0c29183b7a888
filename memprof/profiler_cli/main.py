"""The entry point: runs the app, and turns whatever ends it into a message and an exit code.

Data goes to stdout, everything else to stderr. A user never sees a traceback of ours for a mistake of his; his own is
shown when it is his code that failed.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from memprof.errors import InternalError, MemprofError, WorkloadError
from memprof.profiler_cli.app import app
from memprof.profiler_cli.console import say_error
from memprof.profiler_cli.exit_codes import ExitCode


class _Signalled(BaseException):
    """Ctrl-C or SIGTERM arrived: unwind, so that children and temporary files go. Typer knows nothing of it."""

    def __init__(self, exit_code: ExitCode) -> None:
        self.exit_code = exit_code


def main() -> NoReturn:
    """Run the command line and exit."""
    signal.signal(signal.SIGINT, _signal_handler(ExitCode.INTERRUPTED))
    signal.signal(signal.SIGTERM, _signal_handler(ExitCode.TERMINATED))
    _open_missing_streams()
    sys.exit(_run())


def _run() -> int:
    try:
        app()
    except SystemExit as ended:  # Typer's way to end, also after it has shown what is wrong with the options
        return ended.code if isinstance(ended.code, int) else ExitCode.FINE
    except _Signalled as signalled:
        say_error("interrupted")
        return signalled.exit_code
    except WorkloadError as error:
        if error.details:
            print(error.details.rstrip(), file=sys.stderr)
        say_error(str(error))
        return ExitCode.WORKLOAD_FAILED
    except InternalError as error:
        say_error(f"{error}. This is a defect of memprof or of this file; please report it")
        return ExitCode.DEFECT
    except MemprofError as error:
        say_error(str(error))
        return ExitCode.WRONG_USAGE
    except Exception:
        traceback.print_exc()
        say_error("memprof itself failed; please report this with the lines above")
        return ExitCode.DEFECT
    return ExitCode.FINE


def _open_missing_streams() -> None:
    """Python has None for a stream that was closed when the process began (`>&-`); what is written there is dropped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open to the end


def _signal_handler(exit_code: ExitCode) -> Callable[[int, FrameType | None], NoReturn]:
    def handle(_signal: int, _frame: FrameType | None) -> NoReturn:
        # Cleaning up takes a moment; an impatient second Ctrl-C must not cut it short.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Signalled(exit_code)

    return handle


if __name__ == "__main__":
    main()
