"""Other ways to compute parts of a step, for `memprof.apply`."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.errors import MemprofError


@dataclass(frozen=True, slots=True, kw_only=True)
class InChunks:
    """The parts of a step that are computed one chunk of rows at a time. A backward pass recomputes each chunk.

    Attributes:
        loss: the number of chunks of the logits and their loss; 1 means whole.
        attention: the number of query blocks of each attention; 1 means whole.
        interleaved: whether a chunk takes rows at equal distances, instead of consecutive ones. Rows that are divided
            over devices, such as those of a batch, need this.
    """

    loss: int = 1
    attention: int = 1
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesInParts:
    """The examples of a loss in parts, one after another.

    Attributes:
        number: the largest number of parts, at least 2. They have equally many examples, so there are fewer parts if
            this number does not divide the examples.
        interleaved: whether a part takes examples at equal distances, instead of consecutive ones. A batch that is
            divided over devices needs this.

    Raises:
        MemprofError: the number is invalid.
    """

    number: int
    interleaved: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.number, int) or self.number < 2:
            raise MemprofError(f"{type(self).__name__} needs an integer of at least 2, not {self.number!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InMinibatches(ExamplesInParts):
    """A loop adds up the gradients of minibatches, so that only one minibatch's activations exist at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplesInChunks(ExamplesInParts):
    """A loop computes the part of a loss in which examples do not mix, under a checkpoint for each chunk of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInMinibatches(ExamplesInParts):
    """A loop computes a step with its derivatives for one minibatch after another, up to where it mixes examples.

    For example, a `vmap` computes the gradient of each example, and the step clips each before it adds them up.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedAttention:
    """Each attention of a step is computed by `jax.nn.dot_product_attention`.

    Attributes:
        implementation: "cudnn", a kernel that never stores the probabilities, or "xla", which runs on any device.
    """

    implementation: str = "cudnn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolled:
    """Layers run one after another, without a loop, if an argument has one array for each (`memprof.in_layers`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowSums:
    """Loops hold their float32 sums of arrays, such as those of gradients, in bfloat16 between iterations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InGroups:
    """Scans have a checkpoint around each iteration, and another one around each group of iterations.

    Unrolled layers have the same. Scans of fewer than two groups have no groups.

    Attributes:
        size: the number of iterations in a group, at least 2.

    Raises:
        MemprofError: the size is invalid.
    """

    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 2:
            raise MemprofError(f"InGroups needs an integer of at least 2, not {self.size!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyReadRows:
    """Large matrix products compute only the rows that are read, such as the logits of each prompt's last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Donation:
    """More arguments that a step's own jit donates, by position."""

    positions: tuple[int, ...]


Rewrite = (
    Donation
    | ExamplesInChunks
    | FusedAttention
    | InChunks
    | InGroups
    | InMinibatches
    | NarrowSums
    | OnlyReadRows
    | StepInMinibatches
    | Unrolled
)
