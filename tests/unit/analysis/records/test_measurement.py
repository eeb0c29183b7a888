"""What follows from the numbers of a run, on hand-made ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measurements import CPU_RUN, GPU_RUN, OUT_OF_MEMORY_RUN

from memprof.analysis.records.measurement import PoolReading


def test_the_median_lies_between_the_middle_steps() -> None:
    assert GPU_RUN.median_seconds == 0.025
    assert OUT_OF_MEMORY_RUN.median_seconds is None


@pytest.mark.parametrize(("percent", "seconds"), [(1, 0.01), (10, 0.01), (50, 0.02), (75, 0.03), (90, 0.04)])
def test_a_percentile_is_the_time_of_one_of_the_steps(percent: int, seconds: float) -> None:
    assert GPU_RUN.percentile_seconds(percent) == seconds


def test_rates_are_at_the_median_time() -> None:
    assert GPU_RUN.per_second(8) == 320
    assert GPU_RUN.per_second(None) is None
    assert OUT_OF_MEMORY_RUN.per_second(8) is None


def test_utilization_is_a_share_of_the_peak() -> None:
    assert GPU_RUN.utilization(0) == 0
    assert GPU_RUN.utilization(round(989.4e12 * 0.025)) == pytest.approx(1)
    assert GPU_RUN.utilization(round(989.4e12 * 0.01)) == pytest.approx(0.4)
    assert CPU_RUN.utilization(10**9) is None  # nobody knows the peak


def test_a_peak_that_was_there_before_the_steps_is_not_theirs() -> None:
    pool = GPU_RUN.pool
    assert pool is not None
    assert pool.peak_bytes == 1536
    before = PoolReading(current_bytes=1024, peak_bytes=1536)
    assert replace(pool, before_steps=before).peak_bytes is None


def test_the_growth_of_a_process_counts_its_arguments_with_their_size() -> None:
    assert CPU_RUN.resident is not None
    assert CPU_RUN.resident.growth_bytes == 2**20 + 64
