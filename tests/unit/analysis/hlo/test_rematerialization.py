"""The names that XLA gives to values which it recomputes on its own."""

from __future__ import annotations

import pytest
from hlo import Step
from hlo_nodes import f32

from memprof.analysis.hlo.rematerialization import is_rematerialized, may_be_rematerialized
from memprof.analysis.records.categories import Role

# As jaxlib 0.10.2 and 0.12 write them.
REMATERIALIZED = [
    "gemm_fusion_dot_general.29.remat",
    "gemm_fusion_dot_general.29.remat2",
    "input_reduce_fusion.11.remat.1.remat2",
    "loop_fusion.remat.3",
    "fusion.remat.clone.1",
    "copy.331.remat_uncompressed",
]
OTHERS = ["remat", "remat.3", "checkpoint_remat", "copy.331.remat_compressed", "x.rematted", "x.remat.weight", "add.2"]


@pytest.mark.parametrize("name", REMATERIALIZED)
def test_clones_have_such_names(name: str) -> None:
    assert is_rematerialized(name)
    assert may_be_rematerialized(_program(name))


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_are_no_sign(name: str) -> None:
    assert not is_rematerialized(name)
    assert not may_be_rematerialized(_program(name))


def test_the_name_of_an_operation_of_jax_is_no_sign() -> None:
    assert not may_be_rematerialized(_program("h", op_name="jit(step)/jvp(Net)/block.remat"))


def _program(name: str, op_name: str = "") -> bytes:
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    step.result(step.op(name, "add", f32(4), [x, x], op_name))
    serialized: bytes = step.proto().SerializeToString()
    return serialized
