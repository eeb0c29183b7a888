"""The memory of a block of code: real on the CPU, and by an allocator that counts as a GPU's does."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import memprof


def test_on_a_cpu_it_is_what_the_process_holds() -> None:
    with memprof.measure() as measured:
        kept = np.ones(64 * 1024 * 1024, np.uint8)
        dropped = np.ones(128 * 1024 * 1024, np.uint8)
        del dropped
    (device,) = measured.devices
    assert device.source == "resident"
    assert device.end_bytes - device.start_bytes == pytest.approx(kept.nbytes, rel=0.2)
    assert device.peak_bytes is not None
    assert device.peak_bytes - device.start_bytes == pytest.approx(192 * 1024**2, rel=0.2)
    assert "bytes before" in str(measured)


class _Device:
    """A device whose allocator counts; `held` is what it does from reading to reading."""

    def __init__(self, *held: tuple[int, int]) -> None:
        self._held = iter(held)

    def memory_stats(self) -> dict[str, int]:
        current, peak = next(self._held)
        return {"bytes_in_use": current, "peak_bytes_in_use": peak}

    def __str__(self) -> str:
        return "cuda:0"


@pytest.mark.parametrize(("peak_after", "peak"), [(90, 90), (70, None)])
def test_an_allocators_peak_counts_where_it_was_reached_in_the_block(
    monkeypatch: pytest.MonkeyPatch, peak_after: int, peak: int | None
) -> None:
    devices: list[Any] = [_Device((10, 70), (30, peak_after))]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    with memprof.measure() as measured:
        pass
    (device,) = measured.devices
    assert (device.device, device.source) == ("cuda:0", "allocator")
    assert (device.start_bytes, device.end_bytes, device.peak_bytes) == (10, 30, peak)


def test_it_is_there_when_the_block_fails() -> None:
    with pytest.raises(ValueError, match="mine"), memprof.measure() as measured:
        raise ValueError("mine")
    assert len(measured.devices) == 1


@pytest.mark.slow
def test_arrays_that_stay_are_named_with_what_holds_them() -> None:
    import jax.numpy as jnp

    dropped = jnp.ones((3, 1), "int32").block_until_ready()
    with memprof.measure() as measured:
        del dropped
        kept = {"losses": [jnp.full((5, 77), float(number)) for number in range(4)]}
    found = {growth.type: growth for growth in measured.arrays}
    growth = found["float32[5,77]"]
    assert (growth.start_count, growth.end_count, growth.grown_bytes) == (0, 4, 4 * 5 * 77 * 4)
    assert growth.holder.startswith("kept['losses'][...] in test_arrays_that_stay_are_named_with_what_holds_them (")
    assert (found["int32[3,1]"].start_count, found["int32[3,1]"].end_count) == (1, 0)
    assert measured.start_array_bytes is not None
    assert measured.end_array_bytes is not None
    assert measured.end_array_bytes - measured.start_array_bytes == sum(each.grown_bytes for each in measured.arrays)
    assert "float32[5,77]: 0 before, 4 after, +6,160 bytes, held by kept" in str(measured)
    del kept
