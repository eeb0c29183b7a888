"""The user's own code: `train.py:step_spec` becomes a step to profile.

`reference.py` finds the object that he names, `train_spec.py` is what he gives to have techniques tried on his loss,
`build.py` makes the step, in the child process.
"""
