"""The loss in parts."""

from __future__ import annotations

from math import prod
from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.workloads.evidence import BACKWARD, FORWARD, loop_direction, loop_scopes, no, used_arguments, yes
from memprof.workloads.intents import Aim, Intent, Means
from memprof.workloads.scopes import HEAD, LOSS_CHUNKS, TOKEN_EMBEDDING
from memprof.workloads.technique import ARGUMENT, Argument, Observation, Technique
from memprof.workloads.train_config import TrainConfig, require


def chunked_loss_evidence(seen: Observation) -> Verdict:
    """Looks for a loop over that many chunks in both passes, and for the absence of the full logits at the peak."""
    counts = {
        direction: [
            loop.trip_count
            for loop in seen.report.program.loops
            if LOSS_CHUNKS in loop_scopes(loop) and loop_direction(loop) == direction
        ]
        for direction in (FORWARD, BACKWARD)
    }
    if seen.argument == 1 or not all(seen.argument in found for found in counts.values()):
        return no(f"no loops over {seen.argument} chunks of the loss were found in forward and backward pass")
    full = _num_full_logits(seen.report)
    if full == 0 or any(
        prod(buffer.shape) == full and HEAD in buffer.op + buffer.module for buffer in seen.report.buffers
    ):
        return no(
            f"there are loops over {seen.argument} chunks of the loss, but a value at the peak holds {full} logits"
        )
    return yes(f"loops run {seen.argument} times over chunks of the loss; no value at the peak holds all {full} logits")


def _num_full_logits(report: Report) -> int:
    """One logit for each label and word: the label array by the largest table that has a row for each word."""
    num_labels = max(
        (leaf.num_elements for leaf in used_arguments(report, Role.BATCH) if "labels" in leaf.path), default=0
    )
    tables = [leaf.shape[0] for leaf in used_arguments(report, Role.PARAMS) if f"['{TOKEN_EMBEDDING}']" in leaf.path]
    return num_labels * max(tables, default=0)


def check_config(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` unless there is a loss for each token, and the tokens can be split evenly."""
    require(
        config.task == "next_token",
        f"Technique 'chunked-loss' splits the loss by tokens, but the task is {config.task}: leave it out.",
    )
    num_tokens = config.batch_size // train_config.num_minibatches * config.seq_len
    num_chunks = train_config.num_loss_chunks
    require(
        num_tokens % num_chunks == 0,
        f"A minibatch has {num_tokens} tokens, but that must be a multiple of the {num_chunks} chunks of the loss: "
        "change one of them.",
    )


CHUNKED_LOSS = Technique(
    name="chunked-loss",
    about="""Compute logits and loss in K chunks of the tokens, so that the full logits never exist.

    For a large vocabulary the logits and their gradient, both float32, are the largest buffers of the step. In chunks
    they are K times smaller. The cost is one more product of the output layer, in the backward pass.""",
    summary="logits and cross-entropy in K chunks of the tokens, each recomputed in the backward pass",
    instruction="Compute logits and loss in <K> chunks of the tokens, and recompute each chunk in the backward pass.",
    code="import memprof\n\nstep = memprof.apply(memprof.InChunks(loss=<K>))(step)",
    reference="Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models, arXiv:2411.09009",
    sets={"num_loss_chunks": ARGUMENT},
    argument=Argument(spelling="chunked-loss=<K>", pattern="[1-9][0-9]*", example="4", parse=int),
    evidence=chunked_loss_evidence,
    check_config=check_config,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)

TECHNIQUES = (CHUNKED_LOSS,)


def in_chunks(intent: Intent) -> Means:
    """The user makes as many chunks as advice says."""
    return Means(
        words=f"Split the last hidden states and the labels into {intent.num_parts} chunks of tokens and add up "
        "the loss of one chunk at a time, using jax.lax.map with jax.checkpoint around the head and the "
        "loss.",
        technique=f"{CHUNKED_LOSS.name}={intent.num_parts}",
    )


MEANS = {Aim.CHUNK_LOSS: in_chunks}
