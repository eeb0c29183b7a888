"""The `jax.distributed` job of this process: communication between its processes about a run.

Each process of a job has its own command, with a child that runs the user's code. That code calls
`jax.distributed.initialize`, so the children form the job. For a built-in workload, the child makes this call itself. A
single process is a job of one.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import jax
import numpy as np
from jax.experimental import multihost_utils

from memprof.errors import MemprofError
from memprof.sources.jax.user_traceback import first_line

_ADDRESS = "JAX_COORDINATOR_ADDRESS"


def join() -> None:
    """Join the job whose first process is at `JAX_COORDINATOR_ADDRESS`, if that variable is set.

    Raises:
        MemprofError: the number of processes and the index of this one are unknown.
    """
    if _ADDRESS not in os.environ:
        return
    try:
        jax.distributed.initialize()
    except ValueError as error:
        raise MemprofError(
            f"{_ADDRESS} is set, but JAX finds no Slurm or MPI that assigns this process its number "
            f"({first_line(error)}): start it with srun or mpirun, unset the variable, or give your own step that "
            "calls jax.distributed.initialize"
        ) from error


def refuse_rows() -> None:
    """Raise `MemprofError` if this process is one of several: each of them would report all rows."""
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        raise MemprofError(
            f"a comparison runs its steps in one process, but this is one of {jax.process_count()} processes of a "
            "job: use a separate memprof run for each row, and compare their captures"
        )


def gathered(text: bytes) -> list[bytes]:
    """Gather a text from each process, in the order of their indices. All must call this, or it waits forever."""
    if jax.process_count() == 1:
        return [text]
    lengths = np.ravel(multihost_utils.process_allgather(np.array(len(text))))
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    return [row[:length].tobytes() for row, length in zip(_rows(padded), lengths, strict=True)]


def session_name() -> str:
    """Return a name for one trace session, equal in all processes: its start time by the first process's clock."""
    [first, *_] = gathered(str(int(time.time())).encode())
    return datetime.fromtimestamp(int(first), UTC).strftime("%Y_%m_%d_%H_%M_%S")


def leave() -> None:
    """Wait until all processes are done, and leave the job, which would treat a process that just exits as crashed."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def _rows(padded: np.ndarray) -> np.ndarray:
    return np.asarray(multihost_utils.process_allgather(padded)).reshape(jax.process_count(), -1)
