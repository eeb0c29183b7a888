"""The entry point: runs the app, and turns whatever ends it into a message and an exit code.

Data goes to stdout, everything else to stderr. A user never sees a traceback of ours for a mistake of his; his own is
shown when it is his code that failed.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

import click

from memprof.errors import InternalError, MemprofError, WorkloadError
from memprof.profiler_cli.app import app
from memprof.profiler_cli.console import say_error
from memprof.profiler_cli.exit_codes import ExitCode


class _Terminated(BaseException):
    """SIGTERM arrived: unwind like Ctrl-C does, so that children and temporary files go."""


def main() -> NoReturn:
    """Run the command line and exit."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(_run())


def _run() -> int:
    try:
        app(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.WRONG_USAGE
    except (click.exceptions.Abort, KeyboardInterrupt):
        say_error("interrupted")
        return ExitCode.INTERRUPTED
    except _Terminated:
        return ExitCode.TERMINATED
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FINE
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


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


if __name__ == "__main__":
    main()
