"""Hand-made reports of GPT-2 small under several techniques: the arithmetic of each, without a compiler.

The same model, batch and sequence as in `transformer_report.py`. Every size follows from the shapes:

    params, optimizer   4 and 8 bytes a parameter (lion: 4), twice where the state is not donated (the outputs)
    activations         a layer keeps 578,813,952 bytes in f32, half in bf16; with remat its input alone
    minibatches         divide what grows with the batch, and add a gradient accumulator of 4 bytes a parameter
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from report_builder import buffer, node, report
from transformer_report import TRANSFORMER_NUM_PARAMS

from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import ModuleNode, Report
from memprof.analysis.records.roofline import Roofline

A5000 = Target(
    name="rtx-a5000",
    description="NVIDIA RTX A5000",
    platform="cuda",
    memory_bytes=25_294_995_456,
    compute_capability="8.6",
    reason="asked for",
)
V100 = Target(
    name="v100-16gb",
    description="Tesla V100-SXM2-16GB",
    platform="cuda",
    memory_bytes=16_935_682_048,
    compute_capability="7.0",
    reason="asked for",
)

_NUM_LAYERS = 12
_LAYER_PARAMS = {"ln_1": 1_536, "attn": 2_362_368, "ln_2": 1_536, "mlp": 4_722_432}
_TOP_PARAMS = {"wte": 38_597_376, "wpe": 786_432, "ln_f": 1_536}
_LAYER_ELEMENTS = {"attn": 119_537_664, "mlp": 25_165_824}  # kept for the backward pass: 578,813,952 / 4 together
_INPUT_ELEMENTS = 6_291_456  # of a layer: 8 * 1024 * 768
_LOGITS_BYTES = 1_646_821_376  # f32[8,1024,50257]
_FLOPS, _FORWARD_FLOPS = 6_530_000_000_000, 1_740_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """What the techniques of a label decide."""

    dtype: str
    donate: bool
    remat: bool
    scan: bool
    optimizer: str
    num_minibatches: int

    @property
    def moment_bytes(self) -> int:
        return 4 if self.optimizer == "lion" else 8


def gpt2(techniques: str, *, target: Target = A5000) -> Report:
    """The report of GPT-2 small under techniques joined with `+`."""
    chosen = _choices(techniques.split("+"))
    modules = _modules(chosen)
    own = _step_buffers(chosen)
    buffers = [*own, *(item for items in modules.values() for item in items)]
    made = report(
        buffers,
        fragmentation=10_485_760,
        modules=node("", own, children=_tree(modules), fragmentation=10_485_760, num_params=TRANSFORMER_NUM_PARAMS),
        target=target,
        label=f"transformer {techniques}",
        num_params=TRANSFORMER_NUM_PARAMS,
    )
    again = _FORWARD_FLOPS if chosen.remat else 0
    config = {
        "preset": "gpt2",
        "batch_size": 8,
        "seq_len": 1024,
        "compute_dtype": {"f32": "float32", "bf16": "bfloat16"}[chosen.dtype],
        "donate": chosen.donate,
        "num_minibatches": chosen.num_minibatches,
        "remat": chosen.remat,
        "scan_layers": chosen.scan,
        "optimizer": chosen.optimizer,
    }
    bound = Roofline(
        at_least_seconds=(0.025 if chosen.dtype == "bf16" else 0.05) + (0.005 if chosen.remat else 0.0),
        compute_share=0.25,
        memory_share=0.75,
        communication_share=0.0,
        priced_share=1.0,
    )
    return replace(made, config=config, flops=_FLOPS + again, recomputed_flops=again, roofline=bound)


def _choices(techniques: list[str]) -> _Choices:
    return _Choices(
        dtype="bf16" if "bf16" in techniques else "f32",
        donate="donate" in techniques,
        remat="remat" in techniques,
        scan="scan" in techniques,
        optimizer="lion" if "opt=lion" in techniques else "adamw",
        num_minibatches=4 if "accum4" in techniques else 1,
    )


def _modules(chosen: _Choices) -> dict[str, list[LiveBuffer]]:
    """What each module holds itself, by path. A scan has one module with everything of all layers."""
    found: dict[str, list[LiveBuffer]] = {}
    for layer in range(1 if chosen.scan else _NUM_LAYERS):
        count = _NUM_LAYERS if chosen.scan else 1
        path = "layers" if chosen.scan else f"layers_{layer}"
        is_last = chosen.scan or layer == _NUM_LAYERS - 1
        found[path] = list(_block_buffers(path, chosen, count))
        for name, num_params in _LAYER_PARAMS.items():
            inner = f"{path}/{name}"
            found[inner] = [
                *_state_buffers(inner, num_params * count, chosen),
                *_saved_buffers(inner, _LAYER_ELEMENTS.get(name, 0), chosen, count, is_last=is_last),
            ]
    for path, num_params in _TOP_PARAMS.items():
        found[path] = list(_state_buffers(path, num_params, chosen))
    return found


def _state_buffers(path: str, num_params: int, chosen: _Choices) -> Iterable[LiveBuffer]:
    def state(num_elements: int, category: Category, phase: Phase = Phase.ARGUMENT, dtype: str = "f32") -> LiveBuffer:
        return buffer((num_elements,), dtype, category, module=path, op=f"state['{path}']", phase=phase)

    moments = num_params * chosen.moment_bytes // 4
    yield state(num_params, Category.PARAMS)
    yield state(moments, Category.OPTIMIZER_STATE)
    if not chosen.donate:
        yield state(num_params + moments, Category.OUTPUTS, Phase.UPDATE)
    if chosen.num_minibatches > 1 or path == "wte":
        yield state(num_params, Category.GRADIENTS, Phase.BACKWARD)
    if chosen.dtype == "bf16" and path.startswith("layers"):
        yield state(num_params, Category.PARAM_COPIES, Phase.FORWARD, "bf16")


def _block_buffers(path: str, chosen: _Choices, count: int) -> Iterable[LiveBuffer]:
    if chosen.remat:
        num_elements = _INPUT_ELEMENTS * count // chosen.num_minibatches
        yield buffer((num_elements,), chosen.dtype, Category.ACTIVATIONS, module=path, op=f"{path}/checkpoint")


def _saved_buffers(
    path: str, num_elements: int, chosen: _Choices, count: int, *, is_last: bool
) -> Iterable[LiveBuffer]:
    num_elements //= chosen.num_minibatches
    if not num_elements:
        return
    if not chosen.remat:
        yield buffer((num_elements * count,), chosen.dtype, Category.ACTIVATIONS, module=path, op=f"jvp({path})")
    elif is_last:
        op = f"rematted_computation/{path}"
        yield buffer((num_elements,), chosen.dtype, Category.RECOMPUTED, module=path, op=op, phase=Phase.RECOMPUTE)


def _step_buffers(chosen: _Choices) -> list[LiveBuffer]:
    logits = (_LOGITS_BYTES // 4 // chosen.num_minibatches,)
    return [
        buffer(logits, "f32", Category.ACTIVATIONS, op="jvp(wte)/attend", source="model.py:88"),
        buffer(logits, "f32", Category.COTANGENTS, op="log_softmax/sub", source="loss.py:12", phase=Phase.BACKWARD),
        buffer((33_554_432,), "u8", Category.WORKSPACE, phase=Phase.BACKWARD),
        buffer((8, 1024), "s32", Category.BATCH, op="batch['tokens']", phase=Phase.ARGUMENT),
        buffer((2,), "u32", Category.OTHER_STATE, op="state.rng", phase=Phase.ARGUMENT),
        buffer((), "s32", Category.OPTIMIZER_STATE, op="state.opt_state[0].count", phase=Phase.ARGUMENT),
    ]


def _tree(modules: dict[str, list[LiveBuffer]]) -> tuple[ModuleNode, ...]:
    children: dict[str, list[ModuleNode]] = {}
    for path, items in modules.items():
        parent, _, _ = path.rpartition("/")
        if parent:
            children.setdefault(parent, []).append(node(path, items))
    return tuple(
        node(path, items, children=tuple(children.get(path, ()))) for path, items in modules.items() if "/" not in path
    )
