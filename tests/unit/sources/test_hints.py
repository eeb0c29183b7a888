"""What to do about errors that people meet again and again is said with the error."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.errors import Interrupted, MemprofError, WorkloadError
from memprof.sources.jax.hints import as_workload_error, hint


def test_a_matrix_product_that_xla_cannot_generate_can_be_made_by_cublas() -> None:
    refusal = RuntimeError("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.147 = f32[4096,1024]{1,0}")
    assert "-t xla:xla_gpu_enable_triton_gemm=false" in hint(refusal)
    assert hint(RuntimeError("INTERNAL: something else")) == ""


def test_an_axis_that_the_mesh_has_not_may_be_one_that_the_command_left_out() -> None:
    assert "add it to --mesh" in hint(ValueError("Resource axis: data of P('data',) is not found in mesh: ('tp',)."))


def test_a_line_that_runs_on_an_absent_gpu_is_named() -> None:
    errors = []
    for message in (
        "'Executable' object has no attribute 'local_devices'",
        "... not available with compile-only client.",
    ):
        try:
            raise AttributeError(message)
        except AttributeError as error:
            errors.append(error)
    assert [hint(error).partition(": ")[0] for error in errors] == [
        f"{Path(__file__).name}:{error.__traceback__.tb_lineno} tries to create an array on an absent GPU"  # type: ignore[union-attr]
        for error in errors
    ]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError, WorkloadError),
        (KeyboardInterrupt, WorkloadError),  # the user's own code may raise it
        (SystemExit, WorkloadError),
        (MemprofError, MemprofError),
        (Interrupted, Interrupted),
    ],
)
def test_the_end_of_a_command_is_no_error_of_its_step(
    raised: type[BaseException], expected: type[BaseException]
) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - its type is compared
        as_workload_error("could not be built", fail)
    assert caught.type is expected
