"""What is profiled: models, the training step around them, and the techniques that change its memory.

- `models/NAME/` has a model: its configuration with presets, and its network.
- `techniques/FAMILY.py` has the techniques of a family: what each sets of the training configuration, how it is done in
  a user's own code, and what shows in a compiled program that it took effect.
- `optimizers/` has the optimizers by name, and those of our own.
- `user/` makes a step of the user's own code.

`build.build_step` puts a model and techniques together into the `StepSpec` that is compiled:

    build_step(workload="transformer", preset="tiny", techniques=("bf16", "donate"))

`train_step.py` is the step, in terms of `model.py`, `losses.py` and `gradients.py`; `layers.py` and `pruning.py` are
what networks are made of. What lists names and rejects wrong ones (`registry.py`, `composition.py`, `overrides.py`)
imports no jax, so that it costs no more than reading a few small files.
"""
