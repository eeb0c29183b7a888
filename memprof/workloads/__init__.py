"""What is profiled: models, the training step around them, and the techniques that change its memory.

A workload is a model with its presets (`models/`, one per file). A technique is a change to the training configuration
(`techniques/`, by family). `build.build_step` puts both together into the `StepSpec` that `capture` compiles:

    build_step(workload="transformer", preset="tiny", techniques=("bf16", "donate"))

Models, presets, techniques and optimizers are found by scanning their packages; their files import no jax, so that
listing them and rejecting a wrong name costs no more than reading a few small files.
"""
