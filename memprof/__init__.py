"""memprof: every byte of a JAX training step's device memory, explained, for any GPU, without needing one.

The rooms: `capture` compiles a step, `analysis` says where its bytes go, `reports` shows it, `workloads` has models and
techniques to try, `profiler_cli` is the command line. See docs/how-it-works.md.
"""

from memprof.version import __version__

__all__ = ["__version__"]
