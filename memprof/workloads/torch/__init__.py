"""The built-in workloads and the user's own steps in PyTorch. `plan.py` makes the choices without importing torch."""
