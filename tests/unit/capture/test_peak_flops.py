"""The peak of a device by the name that its driver gives it."""

from __future__ import annotations

import pytest

from memprof.capture.targets.gpu import gpu_of_kind, gpus


@pytest.mark.parametrize(
    ("device_kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H200", 989.4e12),  # the catalogue adds its memory
        ("NVIDIA L4", 121e12),  # and no L40S
        ("NVIDIA H100", None),  # of which there are two, with different peaks
        ("cpu", None),
        ("NVIDIA", None),
    ],
)
def test_a_name_that_leaves_no_doubt_has_a_peak(device_kind: str, peak: float | None) -> None:
    gpu = gpu_of_kind(device_kind)
    assert (gpu.peak_flops_per_second if gpu else None) == peak


def test_a_peak_is_no_less_than_what_the_plain_units_do() -> None:
    """A multiply-add a unit and cycle in float32; tensor cores do more, by 3.9 to 31 times on these devices."""
    for gpu in gpus().values():
        if gpu.peak_flops_per_second is not None:
            plain = 2 * gpu.num_multiprocessors * gpu.fp32_units_per_multiprocessor * gpu.clock_ghz * 1e9
            assert 3.9 < gpu.peak_flops_per_second / plain < 31, gpu.name
