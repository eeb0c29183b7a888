"""What every other row is measured against."""

from __future__ import annotations

from memprof.workloads.technique import Technique
from memprof.workloads.train_config import technique_fields

BASELINE = Technique(
    name="baseline",
    about="""Float32 and no technique: the reference that every other row is compared with.""",
    summary="float32 throughout, and no other technique",
    reference="none: this is JAX's default",
    # It decides all of them, hence it goes with none of the others.
    sets=technique_fields(),
)

TECHNIQUES = (BASELINE,)
