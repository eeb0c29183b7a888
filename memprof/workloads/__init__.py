"""Models, the training step around them, and the techniques that change its memory.

- `models/NAME/` contains a model: its configuration with presets, and its network.
- `techniques/FAMILY.py` contains the techniques of a family. A technique defines the fields of the training
  configuration that it sets, the equivalent change in a user's own code, and the evidence in a compiled program that it
  took effect.
- `optimizers/` contains the optimizers by name, and memprof's own.
- `user/` builds a step from the user's own code.

`build.build_step` combines a model and techniques into the `StepSpec` that is compiled:

    build_step(workload="transformer", preset="tiny", techniques=("bf16", "donate"))

`train_step.py` defines the step in terms of `model.py`, `losses.py` and `gradients.py`. Networks are built from
`layers.py` and `pruning.py`. The modules that list names and reject wrong ones (`registry.py`, `composition.py`,
`overrides.py`) don't import jax, so a listing costs no more than reading a few small files.
"""
