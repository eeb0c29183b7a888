"""The arrays that JAX makes within a block: counting all live arrays would also see those that other tests leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def no_arrays_made() -> Iterator[None]:
    """Assert that no array made in a `with` block is live at its end."""
    before = jax.live_arrays()  # held, so that no other array gets the identity of one of them
    known = {id(array) for array in before}
    yield
    made = [array.shape for array in jax.live_arrays() if id(array) not in known]
    assert made == []
