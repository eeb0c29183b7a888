"""TensorBoard with its profile plugin, on the loopback interface only, until Ctrl-C."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from memprof.errors import MemprofError
from memprof.profiler_cli.console import say

_LOOPBACK = "127.0.0.1"
_NEEDED = ("tensorboard", "tensorboard_plugin_profile")


def check_can_view() -> None:
    """Find out before the work starts whether there is a viewer.

    Raises:
        MemprofError: TensorBoard or its profile plugin is not installed.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MemprofError(
            f'--view needs {" and ".join(missing)}; install it with pip install "jax-memprof[tensorboard]"'
        )


def view(log_folder: Path) -> None:
    """Serve a log directory and say where, until TensorBoard ends or this command does.

    Raises:
        MemprofError: TensorBoard does not start.
    """
    # Its faster reader of event files is a second server, which a log directory of profiles has no use for.
    command = ["--logdir", str(log_folder), "--host", _LOOPBACK, "--port", "0", "--load_fast=false"]
    with subprocess.Popen(
        [sys.executable, "-m", "memprof.profiler_cli.viewer", *command],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=sys.stderr,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            printed = []
            for line in server.stderr:
                printed.append(line)
                address = re.search(rf"http://{re.escape(_LOOPBACK)}:\d+/", line)
                if address:
                    say(f"TensorBoard shows it at {address.group()}#profile (this machine only); Ctrl-C ends it")
            if server.wait():
                raise MemprofError(f"TensorBoard ended: {''.join(printed[-5:]).strip()}")
        finally:
            server.kill()


def _serve() -> None:
    """The server's process: TensorBoard, with its own arguments, until stdin closes, when the command is gone."""
    threading.Thread(target=_terminate_with_parent, daemon=True).start()
    from tensorboard.main import run_main

    run_main()


def _terminate_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    _serve()
