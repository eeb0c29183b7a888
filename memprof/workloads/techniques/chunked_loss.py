"""chunked-loss=<K>: logits and loss in K parts of the tokens, so that the full logits never exist.

For a large vocabulary the logits and their gradient, both float32, are the largest buffers of the step. In chunks they
are K times smaller. The price is the output layer's product once more in the backward pass.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from memprof.analysis.categories import Category
from memprof.workloads.checks import require
from memprof.workloads.evidence.loops import chunked_loss_evidence
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with the loss in so many chunks."""
    assert isinstance(argument, int)
    return dataclasses.replace(config, num_loss_chunks=argument)


def check_config(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` unless there is a loss for each token, and the tokens can be split evenly."""
    require(
        config.task == "next_token",
        f"Technique 'chunked-loss' splits the losses of tokens, but the task is {config.task}: leave it out.",
    )
    num_tokens = config.batch_size // train_config.num_minibatches * config.seq_len
    num_chunks = train_config.num_loss_chunks
    require(
        num_tokens % num_chunks == 0,
        f"A minibatch has {num_tokens} tokens, but that must be a multiple of the {num_chunks} chunks of the loss:"
        " change either.",
    )


TECHNIQUE = Technique(
    name="chunked-loss",
    summary="logits and cross-entropy in K chunks of the tokens, each computed again in the backward pass",
    how_to=HowTo(
        sentence="Compute logits and loss in <K> chunks of the tokens, and each chunk again in the backward pass.",
        code="loss = jnp.sum(jax.lax.map(jax.checkpoint(loss_of_chunk), tokens.reshape(<K>, -1, *tokens.shape[2:])))",
    ),
    reference="Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models, arXiv:2411.09009",
    family="loss",
    sets=("num_loss_chunks",),
    apply=apply,
    argument=Argument(spelling="chunked-loss=<K>", pattern="[1-9][0-9]*", example="4", parse=int),
    evidence=chunked_loss_evidence,
    check_config=check_config,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)
