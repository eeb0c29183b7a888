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

from memprof.workloads.composition import parse_techniques
from memprof.workloads.intents import STEP_NAMES, Aim, Intent, means_to, with_imports
from memprof.workloads.registry import techniques
from memprof.workloads.technique import Technique

DOCS = Path(__file__).parents[2] / "docs" / "advice.md"
_AXES = ("dp", "fsdp")
_MESH_AXES = (*_AXES, "tp", "sp", "ep", "pp")
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
        "mesh": Mesh(np.array(jax.devices()[:1]).reshape([1] * 6), _MESH_AXES, axis_types=(AxisType.Auto,) * 6),
        "learning_rate": 1e-3,
        "loss": lambda params, batch: jnp.sum(batch["weights"]) * jnp.sum(params["w"] ** 2),
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


@pytest.mark.parametrize("technique", [each for each in techniques() if each.instruction], ids=lambda each: each.name)
def test_the_code_of_a_technique_runs_beside_the_same_names(technique: Technique) -> None:
    (applied,) = parse_techniques(technique.example)
    assert applied.instruction
    own = _own_names()
    namespace = dict(own)
    exec(with_imports(applied.code).replace('"cudnn"', '"xla"'), namespace)
    params, x = own["params"], own["x"]
    assert jnp.allclose(namespace["block"](params, x), own["block"](params, x))
    if "gradients" in namespace and "loss(" in applied.code:  # accumulated over equal parts of the batch
        whole = jax.grad(own["loss"])(params, own["batch"])
        number = int(str(applied.argument))
        assert jnp.allclose(namespace["gradients"]["w"], whole["w"] / number)


def test_quantised_weights_give_nearly_the_same_product() -> None:
    weights = jax.random.normal(jax.random.key(0), (256, 8))
    inputs = jax.random.normal(jax.random.key(1), (4, 256))
    for name, tolerance in (("int8-weights", 0.02), ("int4-weights", 0.2), ("fp8-weights", 0.05)):
        (applied,) = parse_techniques(name)
        assert applied.instruction
        namespace: dict[str, Any] = {}
        exec(with_imports(applied.code), namespace)
        found = namespace["product"](inputs, *namespace["quantised"](weights))
        error = jnp.linalg.norm(found - inputs @ weights) / jnp.linalg.norm(inputs @ weights)
        assert error < tolerance, name


@pytest.mark.parametrize("aim", [Aim.CAST_WEIGHTS, Aim.CAST_CACHE])
def test_casts_leave_integers_as_they_are(aim: Aim) -> None:
    tree = {"w": jnp.ones(3), "number": jnp.ones(3, jnp.int32)}
    namespace: dict[str, Any] = {"params": tree, "batch": tree, "cache": tree}
    exec(means_to(Intent(aim=aim)).code, namespace)
    changed = namespace["cache" if aim is Aim.CAST_CACHE else "params"]
    assert {name: str(leaf.dtype) for name, leaf in changed.items()} == {"w": "bfloat16", "number": "int32"}


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
