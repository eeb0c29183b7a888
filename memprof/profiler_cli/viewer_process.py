"""TensorBoard in a process that ends with the command that started it: `python -m memprof.profiler_cli.viewer_process`.

It takes TensorBoard's own arguments. When stdin closes, the command is gone, however it ended.
"""

from __future__ import annotations

import os
import sys
import threading


def main() -> None:
    """Serve until stdin closes."""
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    from tensorboard.main import run_main

    run_main()


def _end_with_the_command() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
