"""The user's own code: `train.py:step_spec` becomes a step to profile.

`reference.py` finds the named object. `train_spec.py` defines the record that lets users try techniques on their own
loss. `build.py` builds the step in the child process.
"""
