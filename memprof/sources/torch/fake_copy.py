"""A step whose model exists, as fake tensors: its shapes and dtypes without its memory."""

from __future__ import annotations

import copy
from dataclasses import replace

from memprof.errors import MemprofError
from memprof.sources.torch.step_spec import TorchStepSpec


def fake_copy(spec: TorchStepSpec) -> TorchStepSpec:
    """The same step on fake tensors. To be called under `FakeTensorMode`.

    Raises:
        MemprofError: the step is a function of its own, whose tensors cannot be replaced.
    """
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeCopyMode
    from torch.utils._python_dispatch import _disable_current_modes

    if spec.step is not None:
        raise MemprofError(
            "a TorchStepSpec with step= must be made under fake tensors: give a function that returns it"
        )
    mode = detect_fake_mode()
    # A trace accepts no real tensors, and these are about to be replaced.
    with _disable_current_modes(), FakeCopyMode(mode):
        model, optimizer, batch, scaler = copy.deepcopy((spec.model, spec.optimizer, spec.batch, spec.scaler))
    return replace(spec, model=model, optimizer=optimizer, batch=batch, scaler=scaler)
