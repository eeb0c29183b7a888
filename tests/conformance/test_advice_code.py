"""The law of the code in advice: it runs when it is pasted into a step, or it is none.

Code may take the names of the user's step that `intents.STEP_NAMES` lists, and imports all others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

from memprof.workloads.intents import STEP_NAMES, Aim, Intent, means_to

DOCS = Path(__file__).parents[2] / "docs" / "advice.md"
_AXES = ("dp", "fsdp")
_VARIANTS = {
    Aim.DONATE: ({"positions": (0, 2)}, {"names": ("params",)}, {"positions": (0,), "names": ("cache",)}),
    Aim.DIVIDE_STATE: (
        {"names": ("params",), "axes": ("fsdp",)},
        {"names": ("optimizer_state",), "axes": ("dp",)},
        {"names": ("optimizer_state",), "axes": _AXES},
    ),
    Aim.DIVIDE_BATCH: ({"axes": ("dp",)}, {"axes": _AXES}),
    Aim.DIVIDE_LOGITS: ({"axes": ("fsdp",)}, {"axes": _AXES}),
    Aim.KEEP_BATCH_DIVIDED: ({"axes": ("dp",)}, {"axes": _AXES}),
    Aim.FUSE_ATTENTION: ({"dtype": "bf16"}, {"dtype": "f32"}, {"dtype": "f32", "drops": True}),
    Aim.RECOMPUTE_MODULES: ({"modules": "layers_*"}, {"modules": "layers_*/mlp"}),
    Aim.CHUNK_LOSS: ({"num_parts": 8},),
    Aim.CHUNK_ARRAY: ({"num_parts": 8},),
}
INTENTS = [
    pytest.param(Intent(aim=aim, **fields), id=f"{aim.name.lower()}-{number}")
    for aim in Aim
    for number, fields in enumerate(_VARIANTS.get(aim, ({},)))
]


def _step(params: Any, opt_state: Any = None, cache: Any = None) -> Any:
    return params, opt_state, cache


def _own_names() -> dict[str, Any]:
    """A user's step: one array each, or a tree of them where users have trees."""
    params = {"w": jnp.ones((4, 4)), "b": jnp.ones(4), "scale": jnp.ones(())}
    attended = jnp.ones((2, 8, 2, 16))
    return {
        "step": _step,
        "params": params,
        "opt_state": optax.adam(1e-3).init(params),
        "optimizer": optax.adam(1e-3),
        "gradients": params,
        "batch": {"tokens": jnp.ones((4, 8), jnp.int32), "weights": jnp.ones(4)},
        "cache": {"k": jnp.ones((3, 2, 8, 2, 16)), "v": jnp.ones((3, 2, 8, 2, 16))},
        "mesh": Mesh(np.array(jax.devices()[:1]).reshape(1, 1), _AXES, axis_types=(AxisType.Auto,) * 2),
        "block": lambda params, x: x @ params["w"],
        "body": lambda x, params: (x @ params["w"], None),
        "x": jnp.ones((2, 8, 4)),
        "q": attended,
        "k": attended,
        "v": attended,
        "logits": jnp.ones((2, 8, 4)),
    }


@pytest.mark.parametrize("intent", INTENTS)
def test_it_is_code_or_a_sentence(intent: Intent) -> None:
    found = means_to(intent)
    assert bool(found.code) != bool(found.words)
    assert not found.words or (found.words[0].isupper() and found.words.endswith("."))


@pytest.mark.parametrize("intent", INTENTS)
def test_its_code_runs_beside_the_names_that_the_docs_list_and_no_others(
    intent: Intent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    own = _own_names()
    namespace = dict(own)
    # cuDNN is for NVIDIA GPUs; `integration/test_advice.py` traces its kernel.
    exec(means_to(intent).code.replace('"cudnn"', '"xla"'), namespace)
    params, x = own["params"], own["x"]
    assert jnp.allclose(namespace["block"](params, x), own["block"](params, x))
    assert jnp.allclose(namespace["body"](x, params)[0], own["body"](x, params)[0])
    if namespace["step"] is not own["step"]:
        namespace["step"](params, own["opt_state"], cache=own["cache"])


def test_a_flag_of_xla_is_added_to_those_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    namespace: dict[str, Any] = {}
    exec(means_to(Intent(aim=Aim.GENERATE_PRODUCTS)).code, namespace)
    assert namespace["os"].environ["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false --xla_gpu_cublas_fallback=false"


def test_a_cache_is_split_into_one_tree_for_each_layer() -> None:
    namespace = _own_names()
    exec(means_to(Intent(aim=Aim.SPLIT_CACHE)).code, namespace)
    assert [{name: leaf.shape for name, leaf in layer.items()} for layer in namespace["cache"]] == [
        {"k": (2, 8, 2, 16), "v": (2, 8, 2, 16)}
    ] * 3


def test_the_docs_list_the_names() -> None:
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", DOCS.read_text(), re.MULTILINE)).items() >= STEP_NAMES.items()
    assert _own_names().keys() == STEP_NAMES.keys()
