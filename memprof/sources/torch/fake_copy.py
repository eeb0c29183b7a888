"""Copy of a step with an existing model to fake tensors, which have shapes and dtypes but no memory."""

from __future__ import annotations

import copy
from dataclasses import replace

from memprof.errors import MemprofError
from memprof.sources.torch.step_spec import TorchStepSpec


def fake_copy(spec: TorchStepSpec) -> TorchStepSpec:
    """Return the same step on fake tensors. Call it under `FakeTensorMode`.

    Raises:
        MemprofError: the step is a custom function (`step=`), whose tensors cannot be replaced.
    """
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeCopyMode
    from torch.utils._python_dispatch import _disable_current_modes

    if spec.step is not None:
        raise MemprofError(
            "a TorchStepSpec with step= must be made under fake tensors: give a function that returns it"
        )
    mode = detect_fake_mode()
    # A trace rejects real tensors, so modes are disabled until these are replaced.
    with _disable_current_modes(), FakeCopyMode(mode):
        model, optimizer, batch, scaler = copy.deepcopy((spec.model, spec.optimizer, spec.batch, spec.scaler))
    return replace(spec, model=model, optimizer=optimizer, batch=batch, scaler=scaler)
