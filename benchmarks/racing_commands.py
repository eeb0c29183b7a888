"""Commands that run at the same time in one folder: does each keep its capture?

    python -m benchmarks.racing_commands --commands 8 --rounds 20

Every round starts so many `memprof run` of one tiny step at once, all in the same folder. At the end there must be a
capture for each, all of which can be read, and nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from memprof.sources.capture_file import read_capture

_COMMAND = (sys.executable, "-m", "memprof.profiler_cli.main", "run", "mlp", "--preset", "tiny", "--target", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", type=int, default=8, help="how many at once")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, options.rounds + 1):
            running = [
                subprocess.Popen(_COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for _ in range(options.commands)
            ]
            codes = [command.wait() for command in running]
            captures = sorted(Path(folder).iterdir())
            print(f"round {number}: exit codes {sorted(set(codes))}, {len(captures)} files", flush=True)
            if any(codes) or len(captures) != number * options.commands:
                sys.exit("a command failed, or a capture is lost")
        for path in captures:
            read_capture(path)
        print(f"{len(captures)} captures of {options.commands * options.rounds} commands, all of which can be read")


if __name__ == "__main__":
    main()
