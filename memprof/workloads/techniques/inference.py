"""The KV cache of an inference step: how wide, how long and how many it is, and how a prompt gets into it."""

from __future__ import annotations

from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.workloads.evidence import in_words, loop_scopes, most_bytes, no, total_bytes, used_arguments, yes
from memprof.workloads.intents import Aim, Means
from memprof.workloads.scopes import LAYERS
from memprof.workloads.technique import ARGUMENT, Argument, Observation, Technique
from memprof.workloads.train_config import TrainConfig, require

_NUMBER = "[1-9][0-9]*"
# The axes of keys and values, from the end: tokens, heads, width of a head.
_TOKENS, _HEADS = -3, -2


def kv_list_evidence(seen: Observation) -> Verdict:
    """Looks for a cache of separate arrays, and for the absence of a loop over layers."""
    cache = used_arguments(seen.report, Role.KV_CACHE)
    loops = [loop for loop in seen.report.program.loops if LAYERS in loop_scopes(loop)]
    sentence = f"the program takes {in_words(total_bytes(cache))} of cache in {len(cache)} arrays"
    if loops or not cache:
        return no(f"{sentence}, and a loop iterates over the layers")
    if seen.reference is not None:
        ours, theirs = (most_bytes(each, Category.FORWARD_TEMPS) for each in (seen.report, seen.reference))
        sentence += f"; temporaries take {in_words(ours)} at most, in the reference {in_words(theirs)}"
    return yes(sentence)


def gqa_evidence(seen: Observation) -> Verdict:
    """Looks for that many heads of keys and values in the cache."""
    return _has_axis(seen, _HEADS, "heads of keys and values")


def window_evidence(seen: Observation) -> Verdict:
    """Looks for a cache of that many tokens of each sequence, or of the pages that they take."""
    tables = _tables(seen.report)
    if not tables:
        return _has_axis(seen, _TOKENS, "tokens of each sequence")
    ((_, page_size),) = _pools(seen.report)
    num_pages, needed = tables[0].shape[-1], -(-int(seen.argument or 0) // page_size)
    sentence = f"each sequence has {num_pages} pages of {page_size} tokens"
    return yes(sentence) if num_pages == needed else no(sentence)


def paged_kv_evidence(seen: Observation) -> Verdict:
    """Looks for a table of pages beside a cache of them."""
    tables = _tables(seen.report)
    if not tables:
        return no("the program takes no page table")
    ((num_pages, page_size),) = _pools(seen.report)
    return yes(
        f"the cache is {num_pages} pages of {page_size} tokens, and their table takes {in_words(total_bytes(tables))}"
    )


def _tables(report: Report) -> list[ArgumentLeaf]:
    return [leaf for leaf in used_arguments(report, Role.BATCH) if leaf.path == "pages"]


def _pools(report: Report) -> set[tuple[int, ...]]:
    """Number of pages and tokens of a page, which all keys and values have alike."""
    arrays = (leaf for leaf in used_arguments(report, Role.KV_CACHE) if "scale" not in leaf.path)
    return {leaf.shape[_TOKENS - 1 : _HEADS] for leaf in arrays}


def chunked_prefill_evidence(seen: Observation) -> Verdict:
    """Looks for a program that reads that many tokens of each prompt."""
    lengths = {leaf.shape[-1] for leaf in used_arguments(seen.report, Role.BATCH) if len(leaf.shape) > 1}
    sentence = f"the program reads {', '.join(map(str, sorted(lengths)))} tokens of each prompt at a time"
    return yes(sentence) if lengths == {seen.argument} else no(sentence)


def _has_axis(seen: Observation, axis: int, what: str) -> Verdict:
    """Looks for an axis of the size that the argument gives in all keys and values."""
    arrays = [leaf for leaf in used_arguments(seen.report, Role.KV_CACHE) if len(leaf.shape) >= -_TOKENS + 1]
    wide = [leaf for leaf in arrays if "scale" not in leaf.path]
    sizes = sorted({leaf.shape[axis] for leaf in wide})
    sentence = f"the cache has {', '.join(map(str, sizes)) or 'no'} {what}"
    return yes(sentence) if sizes == [seen.argument] else no(sentence)


def check_heads(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` unless the query heads can be divided into that many groups."""
    require(
        config.num_heads % train_config.kv_heads == 0,
        f"Technique 'gqa={train_config.kv_heads}' needs a divisor of num_heads, which is {config.num_heads}.",
    )


def check_window(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` for a window that holds the whole context anyway."""
    require(
        train_config.cache_window <= config.context_len,
        f"Technique 'window={train_config.cache_window}' needs a context_len of at least that, but it is "
        f"{config.context_len}.",
    )


def check_prefill(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` unless there is a prompt to read in parts."""
    label = f"Technique 'chunked-prefill={train_config.prefill_chunk}'"
    require(config.phase == "prefill", f"{label} applies to --phase prefill, but the phase is {config.phase}.")
    require(
        train_config.prefill_chunk <= config.prompt,
        f"{label} needs a prompt of at least that many tokens, but it has {config.prompt}.",
    )


_SPLIT_CACHE = (
    "cache = [jax.tree.map(lambda leaf: leaf[n], cache) for n in range(len(jax.tree.leaves(cache)[0]))]"
    "  # once; layer n updates cache[n], in a Python loop"
)

KV_LIST = Technique(
    name="kv-list",
    about="""Hold the KV cache as one array per layer, in a program with unrolled layers.

    A loop over layers reads the cache of a layer and returns the new one, and XLA holds both its input and its output:
    the cache exists twice, donated or not. A separate array is updated in place. The cost is compile time: the program
    grows with the number of layers.""",
    summary="the cache as one array per layer, updated in place; the layers are unrolled",
    instruction="Hold the cache of each layer in a separate array, and call the layers one after another.",
    code=_SPLIT_CACHE,
    reference="JAX's documentation of jax.lax.scan; the XLA documentation on buffer assignment of while loops",
    sets={"cache_list": True},
    evidence=kv_list_evidence,
    shrinks=(Category.FORWARD_TEMPS,),
    tolerance=None,
)

GQA = Technique(
    name="gqa",
    about="""Use N heads of keys and values, each shared by a group of query heads; 1 is multi-query attention.

    The cache and the projections of keys and values shrink by the group size. The result is a different model, which
    has to be trained, or converted and trained further.""",
    summary="N heads of keys and values, each shared by a group of query heads; a different model",
    instruction="Project keys and values to <N> heads, and attend with the query heads in groups.",
    reference="Ainslie et al. 2023, GQA: Training Generalized Multi-Query Transformer Models, arXiv:2305.13245",
    sets={"kv_heads": ARGUMENT},
    argument=Argument(spelling="gqa=<N>", pattern=_NUMBER, example="1", parse=int),
    evidence=gqa_evidence,
    check_config=check_heads,
    shrinks=(Category.KV_CACHE, Category.PARAMS),
    tolerance=None,
)

WINDOW = Technique(
    name="window",
    about="""Let each token attend to the last N tokens only; the cache keeps no others.

    A new token replaces the oldest one. The cache no longer grows with the context. Earlier tokens reach a token only
    through the layers in between, so the model has to be trained with the window.""",
    summary="the cache keeps only the last N tokens of each sequence; a different model",
    instruction="Write each token at its position modulo <N>, and attend to the tokens in the cache.",
    reference="Jiang et al. 2023, Mistral 7B, arXiv:2310.06825, section 2",
    sets={"cache_window": ARGUMENT},
    argument=Argument(spelling="window=<N>", pattern=_NUMBER, example="8", parse=int),
    evidence=window_evidence,
    check_config=check_window,
    shrinks=(Category.KV_CACHE,),
    tolerance=None,
)

PAGED_KV = Technique(
    name="paged-kv",
    about="""Hold the KV cache as a pool of pages of 16 tokens, which a table assigns to sequences.

    The pool may be smaller than all sequences at their maximum length: `--set num_pages=<N>` sets the number of pages.
    By default the pool fits all sequences. `--set page_size=<N>` changes the size of a page. The decoder gathers the
    pages of one layer before it attends, which takes memory in `forward_temps`; the kernels of serving engines read
    the pages in place.""",
    summary="the cache as a pool of pages, which a table assigns to sequences",
    instruction="Hold all pages in one array, and address them through a table of each sequence's pages.",
    reference="Kwon et al. 2023, Efficient Memory Management for Large Language Model Serving with PagedAttention,"
    " arXiv:2309.06180",
    sets={"cache_paged": True},
    evidence=paged_kv_evidence,
    grows=(Category.BATCH,),
    tolerance=None,
)

CHUNKED_PREFILL = Technique(
    name="chunked-prefill",
    about="""Read a prompt N tokens at a time, with one call of the program for each part.

    Every part attends to the cache, which holds the parts before it. Activations and scores are those of N tokens, not
    of the whole prompt, so the longest prompt no longer determines how much memory an engine must reserve.""",
    summary="the prefill reads N tokens of each prompt at a time",
    instruction="Call the prefill with <N> tokens at a time, each part at its positions in the cache.",
    reference="Agrawal et al. 2023, SARATHI: Efficient LLM Inference by Piggybacking Decodes, arXiv:2308.16369",
    sets={"prefill_chunk": ARGUMENT},
    argument=Argument(spelling="chunked-prefill=<N>", pattern=_NUMBER, example="4", parse=int),
    settings=("phase=prefill",),
    evidence=chunked_prefill_evidence,
    check_config=check_prefill,
    shrinks=(Category.FORWARD_TEMPS, Category.BATCH),
    tolerance=None,
)

TECHNIQUES = (KV_LIST, GQA, WINDOW, PAGED_KV, CHUNKED_PREFILL)
MEANS = {
    Aim.SPLIT_CACHE: Means(code=_SPLIT_CACHE, technique=KV_LIST.name),
    Aim.CAST_CACHE: Means(
        code="cache = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, cache)"
        "  # once; cast keys and values, too"
    ),
    Aim.REORDER_CACHE: Means(
        code="cache = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 1, 2), cache)"
        "  # once: (batch, kv_heads, tokens, head_size), and step without swaps"
    ),
    Aim.FILL_CACHE: Means(
        words="Allocate the cache once at its full length, donate it, and write each token's keys and values with"
        " jax.lax.dynamic_update_slice; mask the positions that are not filled yet."
    ),
    Aim.KEEP_WINDOW: Means(
        words="Allocate the cache for the tokens of the window alone, write each token at its position modulo that"
        " number, and mask the slots that are not filled yet."
    ),
    Aim.REPEAT_HEADS_LATER: Means(
        words="Store keys and values before they are repeated, and attend with the query heads in groups:"
        " jax.nn.dot_product_attention takes fewer heads of keys and values than of queries."
    ),
    Aim.KEEP_LAST_LOGITS: Means(code="x = x[:, -1:]  # before the head: the last token of each prompt"),
}
