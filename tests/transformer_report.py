"""A hand-made report of a realistic size: GPT-2 small at the beginning of its backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from report_builder import ARGUMENT_CATEGORIES, buffer, node, report

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import ModuleNode, Report
from memprof.analysis.records.roofline import Roofline
from memprof.analysis.records.timeline import LiveChange, PhaseSpan, Timeline

# The transformer: GPT-2 small, 12 layers, batch 8, sequence 1024, float32, AdamW, donated.
#   wte 50257*768 = 38,597,376   wpe 1024*768 = 786,432   ln_f 2*768 = 1,536
#   a layer: ln_1 1,536 + attn (768*2304+2304 + 768*768+768 = 2,362,368) + ln_2 1,536
#            + mlp (768*3072+3072 + 3072*768+768 = 4,722,432) = 7,087,872;  12 of them 85,054,464
#   together N = 124,439,808 parameters: 4N = 497,759,232 bytes of params, 8N = 995,518,464 of optimizer state
TRANSFORMER_NUM_PARAMS = 124_439_808
TRANSFORMER_CATEGORIES: Mapping[Category, int] = {
    Category.PARAMS: 497_759_232,
    Category.OPTIMIZER_STATE: 995_518_468,  # 8N and a step counter of 4 bytes
    Category.BATCH: 32_768,  # s32[8,1024]
    Category.OTHER_STATE: 8,  # u32[2]
    # A layer keeps probabilities 402,653,184 + qkv 75,497,472 + hidden 100,663,296 = 578,813,952; 12 of them, and the
    # logits f32[8,1024,50257] = 1,646,821,376
    Category.ACTIVATIONS: 8_592_588_800,
    Category.COTANGENTS: 1_646_821_376,  # of the logits
    Category.GRADIENTS: 154_389_504,  # of wte
    Category.WORKSPACE: 33_554_432,  # u8[33554432]
    Category.UNATTRIBUTED: 1_024,  # f32[256]
    Category.FRAGMENTATION: 10_485_760,
}

_LAYERS = range(12)
_BLOCK_PARAMS = {
    "ln_1": (("scale", (768,), "f32"), ("bias", (768,), "f32")),
    "attn": (
        ("qkv.kernel", (768, 2304), "f32"),
        ("qkv.bias", (2304,), "f32"),
        ("out.kernel", (768, 768), "f32"),
        ("out.bias", (768,), "f32"),
    ),
    "ln_2": (("scale", (768,), "f32"), ("bias", (768,), "f32")),
    "mlp": (
        ("up.kernel", (768, 3072), "f32"),
        ("up.bias", (3072,), "f32"),
        ("down.kernel", (3072, 768), "f32"),
        ("down.bias", (768,), "f32"),
    ),
}
_TOP_PARAMS = {
    "wte": (("embedding", (50257, 768), "f32"),),
    "wpe": (("embedding", (1024, 768), "f32"),),
    "ln_f": (("scale", (768,), "f32"), ("bias", (768,), "f32")),
}


def transformer() -> Report:
    """GPT-2 small at the beginning of its backward pass. See the sums above."""
    modules = {f"layers_{layer}/{name}": params for layer in _LAYERS for name, params in _BLOCK_PARAMS.items()}
    modules |= _TOP_PARAMS
    buffers = [item for path, params in modules.items() for item in _state_buffers(path, params)]
    buffers += [item for layer in _LAYERS for item in _layer_buffers(layer)]
    buffers += _step_buffers()
    made = report(
        buffers,
        fragmentation=TRANSFORMER_CATEGORIES[Category.FRAGMENTATION],
        modules=_transformer_modules(modules, buffers),
        timeline=_transformer_timeline(),
        label="transformer donate",
        num_params=TRANSFORMER_NUM_PARAMS,
    )
    bound = Roofline(
        at_least_seconds=0.0432,
        compute_share=0.25,
        memory_share=0.625,
        communication_share=0.125,
        priced_share=0.98,
    )
    return replace(made, roofline=bound)


def _state_buffers(path: str, params: tuple[tuple[str, tuple[int, ...], str], ...]) -> list[LiveBuffer]:
    keys = "".join(f"['{key}']" for key in path.split("/"))
    found = []
    for name, shape, dtype in params:
        leaf = keys + "".join(f"['{key}']" for key in name.split("."))
        for tree, category in (
            ("params", Category.PARAMS),
            ("opt_state[0].mu", Category.OPTIMIZER_STATE),
            ("opt_state[0].nu", Category.OPTIMIZER_STATE),
        ):
            op = f"state.{tree}{leaf}"
            found.append(buffer(shape, dtype, category, module=path, op=op, phase=Phase.ARGUMENT))
    return found


def _layer_buffers(layer: int) -> list[LiveBuffer]:
    def saved(shape: tuple[int, ...], module: str, op: str, source: str) -> LiveBuffer:
        path = f"layers_{layer}/{module}"
        return buffer(
            shape,
            "f32",
            Category.ACTIVATIONS,
            module=path,
            op=f"jit(train_step)/jvp(Transformer)/{path}/{op}",
            source=source,
        )

    return [
        replace(saved((8, 12, 1024, 1024), "attn", "softmax/exp", "attention.py:41"), is_of_attention=True),
        saved((8, 1024, 2304), "attn", "qkv/dot_general", "attention.py:28"),
        saved((8, 1024, 3072), "mlp", "up/dot_general", "mlp.py:19"),
    ]


def _step_buffers() -> list[LiveBuffer]:
    logits = (8, 1024, 50257)
    backward = "jit(train_step)/transpose(jvp(Transformer))"
    return [
        replace(
            buffer(
                logits,
                "f32",
                Category.ACTIVATIONS,
                op="jit(train_step)/jvp(Transformer)/wte/attend",
                source="model.py:88",
            ),
            is_of_softmax=True,
        ),
        buffer(
            logits,
            "f32",
            Category.COTANGENTS,
            op=f"{backward}/log_softmax/sub",
            source="loss.py:12",
            phase=Phase.BACKWARD,
        ),
        buffer(
            (50257, 768),
            "f32",
            Category.GRADIENTS,
            module="wte",
            op=f"{backward}/wte/attend/dot_general",
            source="model.py:88",
            phase=Phase.BACKWARD,
        ),
        buffer((33_554_432,), "u8", Category.WORKSPACE, op=f"{backward}/wte/attend/dot_general", phase=Phase.BACKWARD),
        buffer((256,), "f32", Category.UNATTRIBUTED, op="copy.17", phase=Phase.NONE),
        buffer((8, 1024), "s32", Category.BATCH, op="batch['tokens']", phase=Phase.ARGUMENT),
        buffer((2,), "u32", Category.OTHER_STATE, op="state.rng", phase=Phase.ARGUMENT),
        buffer((), "s32", Category.OPTIMIZER_STATE, op="state.opt_state[0].count", phase=Phase.ARGUMENT),
    ]


def _transformer_modules(
    modules: Mapping[str, tuple[tuple[str, tuple[int, ...], str], ...]], buffers: list[LiveBuffer]
) -> ModuleNode:
    def leaf(path: str) -> ModuleNode:
        return node(path, [item for item in buffers if item.module == path], params=modules[path])

    layers = tuple(
        node(f"layers_{layer}", (), children=tuple(leaf(f"layers_{layer}/{name}") for name in _BLOCK_PARAMS))
        for layer in _LAYERS
    )
    return node(
        "",
        [item for item in buffers if not item.module],
        children=(*layers, *(leaf(path) for path in _TOP_PARAMS)),
        fragmentation=TRANSFORMER_CATEGORIES[Category.FRAGMENTATION],
    )


def _transformer_timeline() -> Timeline:
    """Activations come alive layer by layer, die in reverse; each layer's gradients stay until the update.

    50 positions a layer in the forward pass, 100 in the backward pass, 200 for the update: 2,000 in all.
    """
    layer_activations, logits, layer_gradients = 578_813_952, 1_646_821_376, 28_351_488
    changes: list[LiveChange] = []

    def change(position: int, category: Category, delta_bytes: int) -> None:
        changes.append(LiveChange(position=position, category=category, delta_bytes=delta_bytes))

    for layer in _LAYERS:
        change(50 * layer + 10, Category.ACTIVATIONS, layer_activations)
        change(50 * layer + 20, Category.FORWARD_TEMPS, 402_653_184)
        change(50 * layer + 40, Category.FORWARD_TEMPS, -402_653_184)
    change(598, Category.ACTIVATIONS, logits)
    change(600, Category.COTANGENTS, logits)
    change(600, Category.GRADIENTS, 154_389_504)
    change(600, Category.WORKSPACE, 33_554_432)
    change(600, Category.UNATTRIBUTED, 1_024)
    change(610, Category.COTANGENTS, 50_331_648 - logits)
    change(610, Category.WORKSPACE, -33_554_432)
    change(612, Category.ACTIVATIONS, -logits)
    for layer in reversed(_LAYERS):
        start = 600 + 100 * (11 - layer)
        change(start + 30, Category.COTANGENTS, 402_653_184)
        change(start + 60, Category.COTANGENTS, -402_653_184)
        change(start + 70, Category.GRADIENTS, layer_gradients)
        change(start + 90, Category.ACTIVATIONS, -layer_activations)
    change(1799, Category.COTANGENTS, -50_331_648)
    for layer in _LAYERS:
        change(1800 + 15 * layer, Category.GRADIENTS, -layer_gradients)
        change(1800 + 15 * layer, Category.UPDATE_TEMPS, 2_359_296)
        change(1810 + 15 * layer, Category.UPDATE_TEMPS, -2_359_296)
    change(1990, Category.GRADIENTS, -154_389_504)
    return Timeline(
        num_positions=2000,
        base={each: TRANSFORMER_CATEGORIES[each] for each in ARGUMENT_CATEGORIES if each in TRANSFORMER_CATEGORIES},
        changes=tuple(sorted(changes, key=lambda item: item.position)),
        phases=(
            PhaseSpan(phase=Phase.FORWARD, start=0, end=598),
            PhaseSpan(phase=Phase.BACKWARD, start=599, end=1799),
            PhaseSpan(phase=Phase.UPDATE, start=1800, end=1999),
        ),
        peak_position=600,
    )
