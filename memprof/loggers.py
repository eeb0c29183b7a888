"""Log memory in a training run: TensorBoard, Weights & Biases, MLflow.

    from memprof import loggers

    profile = memprof.profile(train_step, state, batch)
    with loggers.to_tensorboard("logs", profile) as log:
        for number, batch in enumerate(batches):
            state, loss = train_step(state, batch)
            log(number)

The first call writes the prediction: `memprof/predicted/footprint_bytes`, `.../live_peak_bytes`, and the bytes of each
category, for example `memprof/predicted/activations_bytes`. Each call writes the memory measured since the previous
call, for each device of this process: `memprof/measured/cuda_0/allocator_peak_bytes`, `..._start_bytes`,
`..._end_bytes`. Categories cannot be measured: a device counts bytes and does not know their purpose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from memprof.api import Profile
from memprof.errors import MemprofError
from memprof.measuring import Measured, measure
from memprof.sources.jax.tracing.step_checks import shown

Write = Callable[[Mapping[str, int], int], None]  # metrics by name, and the step number

_STEP = "memprof/step"


class MemoryLogger:
    """A callback for a training loop that writes memory metrics to a log. Call it with the number of each ended step.

    JAX runs a step asynchronously, after its call has returned. To measure finished steps, wait for their results with
    `jax.block_until_ready` before the callback.

    Args:
        write: a function that writes metrics: whole bytes by name, and the step number.
        profile: the prediction; None: only measurements are written.
        close: a function that closes the log.

    Raises:
        MemprofError: `profile` is not a `memprof.Profile`.
    """

    def __init__(self, write: Write, profile: Profile | None, *, close: Callable[[], object] = lambda: None) -> None:
        _check(profile)
        self._write = write
        self._unwritten = {} if profile is None else predicted_metrics(profile)
        self._close = close
        self._block = ExitStack()
        self._measured = self._block.enter_context(measure(arrays=False))

    def __call__(self, step: int) -> None:
        """Write the memory measured since the previous call; the first call also writes the prediction.

        Args:
            step: the number of the step that has ended.
        """
        self._block.close()
        metrics = {**self._unwritten, **measured_metrics(self._measured)}
        self._unwritten = {}
        self._measured = self._block.enter_context(measure(arrays=False))
        self._write(metrics, step)

    def close(self) -> None:
        """Close the log if this logger opened it, which completes its files. A run that the caller owns stays open."""
        self._block.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def to_tensorboard(where: str | Path | Any, profile: Profile | None = None) -> MemoryLogger:
    """Log scalars to TensorBoard, which stores them in 24 bits: about seven digits.

    Args:
        where: a log directory, or a writer with `add_scalar(tag, value, step)` such as those of TensorBoard,
            tensorboardX and PyTorch. A writer stays open.
        profile: the prediction; None: only measurements are written.

    Raises:
        MemprofError: TensorBoard is not installed, `where` is neither a directory nor a writer, or `profile` is not a
            `memprof.Profile`.
    """
    _check(profile)  # before a file is created
    writer: Any = where
    if isinstance(where, (str, Path)):
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise _missing("TensorBoard", '"jax-memprof[tensorboard]"') from error
        writer = Writer(str(where))
    elif not callable(getattr(where, "add_scalar", None)):
        raise MemprofError(f"a log directory or a writer with add_scalar was expected, but this is {shown(where)}")

    def write(metrics: Mapping[str, int], step: int) -> None:
        for name, size_bytes in metrics.items():
            writer.add_scalar(name, size_bytes, step)
        writer.flush()

    return MemoryLogger(write, profile, close=(lambda: None) if writer is where else writer.close)


def to_wandb(run: Any = None, profile: Profile | None = None) -> MemoryLogger:
    """Log metrics to a run of Weights & Biases, plotted over `memprof/step`.

    Each call adds a row to the run's history. If your loop logs with `step=`, call the logger after that.

    Args:
        run: a run returned by `wandb.init`; None: the active run.
        profile: the prediction; None: only measurements are written.

    Raises:
        MemprofError: Weights & Biases is not installed, no run is active, `run` is not a run, or `profile` is not a
            `memprof.Profile`.
    """
    if run is None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("Weights & Biases", "wandb") from error
        run = wandb.run
    if run is None:
        raise MemprofError("no run of Weights & Biases is active: start one with wandb.init()")
    if not callable(getattr(run, "define_metric", None)):
        raise MemprofError(
            f"a run of Weights & Biases, as returned by wandb.init(), was expected, but this is {shown(run)}"
        )
    run.define_metric(_STEP, hidden=True)
    run.define_metric("memprof/*", step_metric=_STEP)
    return MemoryLogger(lambda metrics, step: run.log({**metrics, _STEP: step}), profile)


def to_mlflow(run_id: str | None = None, profile: Profile | None = None) -> MemoryLogger:
    """Log metrics to a run of MLflow.

    Args:
        run_id: the ID of the run; None: the active run. MLflow starts one if none is active.
        profile: the prediction; None: only measurements are written.

    Raises:
        MemprofError: MLflow is not installed, or `profile` is not a `memprof.Profile`.
    """
    try:
        import mlflow
    except ImportError as error:
        raise _missing("MLflow", "mlflow") from error
    return MemoryLogger(lambda metrics, step: mlflow.log_metrics(dict(metrics), step=step, run_id=run_id), profile)


def predicted_metrics(profile: Profile) -> dict[str, int]:
    """Return the predicted memory in bytes, by metric name. The categories add up to the footprint."""
    report = profile.report
    sizes = {"footprint": report.footprint_bytes, "live_peak": report.live_peak_bytes}
    sizes |= {category.value: size for category, size in report.categories.items() if size}
    return {f"memprof/predicted/{name}_bytes": size for name, size in sizes.items()}


def measured_metrics(measured: Measured) -> dict[str, int]:
    """Return the measured memory in bytes, by metric name. Unknown peaks are omitted."""
    sizes = {
        f"{re.sub('[^A-Za-z0-9_.-]', '_', each.device)}/{each.source}_{when}": size
        for each in measured.devices
        for when, size in (("start", each.start_bytes), ("end", each.end_bytes), ("peak", each.peak_bytes))
        if size is not None
    }
    return {f"memprof/measured/{name}_bytes": size for name, size in sizes.items()}


def _check(profile: object) -> None:
    if profile is not None and not isinstance(profile, Profile):
        raise MemprofError(f"the profile of a step was expected, but this is {shown(profile)}")


def _missing(name: str, to_install: str) -> MemprofError:
    return MemprofError(f"logging to {name} needs its package: install it with pip install {to_install}")
