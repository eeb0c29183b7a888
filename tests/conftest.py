"""What holds for all tests."""

import os

# JAX itself must not look for a GPU: steps are run on the CPU here, and once JAX has tried CUDA and failed, it cannot
# compile for a GPU that is not there in the same process. Set before anything imports jax.
os.environ["JAX_PLATFORMS"] = "cpu"
