"""Where a program comes from: each source turns what a framework or a compiler knows into values with sizes and lives.

`jax/` traces, compiles and runs steps; `dumps/` reads programs compiled elsewhere; `torch/`, `tensorrt/` and
`snapshot/` make traces and engines of their own. `capture_file.py` reads and writes what all of them make.
"""
