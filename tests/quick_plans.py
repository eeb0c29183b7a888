"""Plans without XLA's `config-assigner`, as the tests' own compiles make them.

Since jax 0.11, this pass compiles a Triton kernel for each matrix product to choose its tiles: a third of a small
compile. The plan is hardly ever another without (docs/compile-time.md).
"""

from __future__ import annotations

QUICK_PLAN_FLAGS = "--xla_disable_hlo_passes=config-assigner"
# As options of a compile to its end for a GPU, which XLA cannot do without that pass.
ALL_PASSES = {"xla_disable_hlo_passes": ""}
