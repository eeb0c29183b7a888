"""The peak of a device by the name that its driver gives it."""

from __future__ import annotations

import pytest

from memprof.sources.jax.targets.nvidia.catalogue import gpu_of_kind, gpus


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
    """A multiply-add a unit and cycle in float32; tensor cores do more, by 1.9 to 32 times on these devices."""
    for gpu in gpus().values():
        if gpu.peak_flops_per_second is not None:
            plain = 2 * gpu.num_multiprocessors * gpu.fp32_units_per_multiprocessor * gpu.clock_ghz * 1e9
            assert 1.9 < gpu.peak_flops_per_second / plain < 32, gpu.name


def test_peaks_by_dtype_are_in_order() -> None:
    """The peak of float32 is that of the plain units; a shorter dtype never has a lower peak than a longer one."""
    for gpu in gpus().values():
        plain = 2 * gpu.num_multiprocessors * gpu.fp32_units_per_multiprocessor * gpu.clock_ghz * 1e9
        peaks = [
            gpu.operations_per_second[each]
            for each in ("f32", "tf32", "f16", "f8")
            if each in gpu.operations_per_second
        ]
        assert peaks == sorted(peaks), gpu.name
        assert 0.85 < gpu.operations_per_second["f32"] / plain < 1.3, gpu.name
