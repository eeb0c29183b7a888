"""What to do about errors that people meet again and again is said with the error."""

from __future__ import annotations

from memprof.capture.hints import hint


def test_a_matrix_product_that_xla_cannot_generate_can_be_made_by_cublas() -> None:
    refusal = RuntimeError("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.147 = f32[4096,1024]{1,0}")
    assert "-t xla:xla_gpu_enable_triton_gemm=false" in hint(refusal)
    assert hint(RuntimeError("INTERNAL: something else")) == ""


def test_an_axis_that_the_mesh_has_not_may_be_one_that_the_command_left_out() -> None:
    assert "name it in --mesh" in hint(ValueError("Resource axis: data of P('data',) is not found in mesh: ('tp',)."))
