"""`python -m memprof`: the command line, for a Python whose scripts are not on `PATH`."""

from __future__ import annotations

from memprof.profiler_cli.main import main

if __name__ == "__main__":
    main()
