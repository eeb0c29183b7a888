"""What every other row is measured against."""

from __future__ import annotations

from memprof.workloads.technique import Technique
from memprof.workloads.train_config import technique_fields

BASELINE = Technique(
    name="baseline",
    about="""Float32 and nothing else, so that every other row has something to be measured against.""",
    summary="float32 throughout, and no other technique",
    reference="none: this is what JAX does when nothing is asked of it",
    family="baseline",
    # It decides all of them, hence it goes with none of the others.
    sets=technique_fields(),
)

TECHNIQUES = (BASELINE,)
