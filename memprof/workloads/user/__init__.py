"""The user's own code: `train.py:step_spec` becomes a step to profile.

`reference.py` finds the object that is named, `train_spec.py` is what a user gives to have techniques tried on their
loss, `build.py` makes the step, in the child process.
"""
