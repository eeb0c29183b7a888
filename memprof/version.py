"""The version of memprof, defined only here, and the versions that its comments refer to.

Comments and docstrings describe JAX and XLA as of jax and jaxlib 0.10.2 to 0.12, which CI tests. A comment that holds
for other versions names them.
"""

__version__ = "0.2.0"
