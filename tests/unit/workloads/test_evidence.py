"""Evidence by hand: what a report must show, and faults that it must tell."""

from __future__ import annotations

import dataclasses

import pytest
from report_builder import BASE, buffer, report

from memprof.analysis.records.capture import ArgumentLeaf, Topology
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.report import CollectiveTraffic, Loop, ScopedOperations
from memprof.analysis.records.timeline import LiveChange
from memprof.workloads.composition import parse_techniques, verdicts
from memprof.workloads.evidence import in_words, most_bytes

assert Category.PARAMS in BASE
NEXT_NUMBER = iter(range(10_000))


def leaf(path, role, shape=(4,), dtype="float32", *, donated=False, used=True):
    size = {"float32": 4, "bfloat16": 2, "int32": 4, "bool": 1}[dtype]
    for length in shape:
        size *= length
    return ArgumentLeaf(
        path=path,
        role=role,
        shape=shape,
        dtype=dtype,
        size_bytes=size,
        donated=donated,
        parameter_number=next(NEXT_NUMBER) if used else None,
    )


def made(buffers=(), *, label="transformer baseline", arguments=(), **program):
    found = report(buffers, label=label, arguments=tuple(arguments), num_params=program.pop("num_params", 0))
    compiler = dataclasses.replace(
        found.compiler,
        alias_bytes=program.pop("alias_bytes", 0),
        argument_bytes=sum(argument.size_bytes for argument in arguments) - program.get("host_bytes", 0),
    )
    return dataclasses.replace(found, compiler=compiler, program=dataclasses.replace(found.program, **program))


def judge(label, found, reference=None):
    applied = parse_techniques(label)
    (verdict,) = [one for one in verdicts(found, applied, reference) if one.evidence.startswith(f"{label}:")]
    return verdict


def recomputed(*modules):
    scopes = (f"step/Net/layers_0/{module}" for module in modules)
    operations = tuple(ScopedOperations(scope=scope, phase=Phase.RECOMPUTE, num_operations=5) for scope in scopes)
    return {"operations": operations, "num_recomputed_operations": 5 * len(operations)}


def activations(length):
    return buffer((length,), "f32", Category.ACTIVATIONS, op="jit(step)/jvp(Net)/tanh")


STATE = [leaf("state.params['kernel']", Role.PARAMS, donated=True), leaf("batch['x']", Role.BATCH)]


def test_donation_is_what_the_compiler_says():
    assert judge("donate", made(arguments=STATE, alias_bytes=16)).took_effect


def test_a_donated_buffer_that_cannot_alias_is_told():
    verdict = judge("donate", made(arguments=STATE, alias_bytes=12))
    assert not verdict.took_effect
    assert "but 16 B are donated" in verdict.evidence


def test_donation_of_what_is_in_host_memory_does_not_count():
    host = leaf("state.opt_state['mu']", Role.OPTIMIZER_STATE, donated=True)
    assert judge("donate", made(arguments=[*STATE, host], alias_bytes=16, host_bytes=16)).took_effect


def test_an_argument_that_is_not_used_cannot_be_donated():
    unused = leaf("state.other", Role.OTHER_STATE, donated=True, used=False)
    assert judge("donate", made(arguments=[*STATE, unused], alias_bytes=16, host_bytes=0)).took_effect


@pytest.mark.parametrize(
    ("label", "trip_count", "took_effect"), [("accum4", 4, True), ("accum4", 2, False), ("accum1", 1, False)]
)
def test_accumulation_is_a_loop_of_its_length(label, trip_count, took_effect):
    loop = Loop(op="jit(step)/minibatches/while", phase=Phase.FORWARD, trip_count=trip_count)
    assert judge(label, made(loops=(loop,))).took_effect == took_effect


def test_a_loop_over_layers_is_no_accumulation():
    loop = Loop(op="jit(step)/jvp(Net)/while", phase=Phase.FORWARD, trip_count=4)
    inner = Loop(op="jit(step)/minibatches/while/body/jvp(Net)/while", phase=Phase.FORWARD, trip_count=4)
    assert not judge("accum4", made(loops=(loop, inner))).took_effect


@pytest.mark.parametrize(("num_copies", "took_effect"), [(2, True), (1, False), (0, False)])
def test_unrolled_accumulation_is_that_many_backward_passes(num_copies, took_effect):
    operations = tuple(
        ScopedOperations(scope=f"step/minibatches_{number}/Net", phase=phase, num_operations=3)
        for number in range(num_copies)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert judge("accum2-loop", made(operations=operations)).took_effect == took_effect


def test_a_checkpoint_on_the_wrong_module_is_told():
    verdict = judge("remat-mlp", made(**recomputed("attention")))
    assert not verdict.took_effect
    assert "5 of attention, but only those of mlp were expected" in verdict.evidence
    verdict = judge("remat-mlp", made(**recomputed("attention", "mlp")))
    assert not verdict.took_effect
    assert "but only those of mlp were expected" in verdict.evidence
    assert not judge("remat", made(**recomputed("mlp"))).took_effect
    assert "no operation of attention and mlp is recomputed" in judge("remat", made(**recomputed("norm"))).evidence


def test_a_checkpoint_that_saves_nothing_is_told():
    before, after = made([activations(8)]), made([activations(8)], **recomputed("mlp"))
    assert not judge("remat-mlp", after, before).took_effect
    assert judge("remat-mlp", made([activations(4)], **recomputed("mlp")), before).took_effect
    assert judge("remat-mlp", after).took_effect, "without a reference there is nothing to compare with"


def test_offloaded_residuals_are_on_the_host():
    assert not judge("remat-offload", made(**recomputed("mlp"))).took_effect
    assert judge("remat-offload", made(**recomputed("mlp"), host_bytes=8)).took_effect


def test_layers_are_looped_over_in_both_passes():
    stacked = [leaf("state.params['layers']['mlp']['kernel']", Role.PARAMS, (12, 4, 4))]
    forward = Loop(op="jit(step)/jvp(Net)/while", phase=Phase.FORWARD, trip_count=12)
    backward = Loop(op="jit(step)/transpose(jvp(Net))/while", phase=Phase.BACKWARD, trip_count=12)
    assert judge("scan", made(arguments=stacked, loops=(forward, backward))).took_effect
    assert not judge("scan", made(arguments=stacked, loops=(forward,))).took_effect
    assert not judge("scan", made(arguments=STATE, loops=(forward, backward))).took_effect


def test_the_full_logits_may_not_be_there():
    arguments = [
        leaf("batch['labels']", Role.BATCH, (2, 6), "int32"),
        leaf("state.params['token_embedding']['embedding']", Role.PARAMS, (64, 8)),
    ]
    loops = tuple(
        Loop(op=f"jit(step)/{name}(loss_chunks)/while", phase=Phase.FORWARD, trip_count=4)
        for name in ("jvp", "transpose(jvp)")
    )
    loops = (loops[0], Loop(op="jit(step)/transpose(jvp(loss_chunks))/while", phase=Phase.BACKWARD, trip_count=4))
    part = buffer((3, 64), "f32", Category.ACTIVATIONS, op="jit(step)/jvp(Net)/head/add")
    full = buffer((2, 6, 64), "f32", Category.ACTIVATIONS, op="jit(step)/jvp(Net)/head/add")
    assert judge("chunked-loss=4", made([part], arguments=arguments, loops=loops)).took_effect
    assert not judge("chunked-loss=4", made([full], arguments=arguments, loops=loops)).took_effect
    assert not judge("chunked-loss=2", made([part], arguments=arguments, loops=loops)).took_effect
    assert not judge("chunked-loss=4", made([part], arguments=arguments, loops=loops[:1])).took_effect


def test_precision_shows_in_the_activations():
    half = buffer((4,), "bf16", Category.ACTIVATIONS, op="jit(step)/jvp(Net)/tanh")
    assert judge("bf16", made([half, activations(12)])).took_effect
    assert "86% f32, 14% bf16" in judge("bf16", made([half, activations(12)])).evidence
    assert not judge("bf16", made([activations(12)])).took_effect
    assert not judge("fp16", made([half])).took_effect
    # Where the peak is in the update, nothing of the network is live: that proves nothing.
    assert judge("bf16", made([])).took_effect is None
    # Nor do a mean and a sum, which are in float32 beside whatever else there is.
    scalar = buffer((), "f32", Category.FORWARD_TEMPS, op="jit(step)/jvp(Net)/reduce_sum")
    assert judge("bf16", made([scalar, buffer((1024,), "f32", Category.PARAMS, op="w")])).took_effect is None
    assert not judge("fp32", made([half], arguments=STATE)).took_effect
    assert judge("fp32", made([activations(12)], arguments=STATE)).took_effect


def test_offloaded_optimizer_state_is_on_the_host_alone():
    state = [*STATE, leaf("state.opt_state['mu']", Role.OPTIMIZER_STATE)]
    on_device = [buffer((4,), "f32", Category.OPTIMIZER_STATE, op="state.opt_state['mu']")]
    assert judge("offload-opt", made(arguments=state, host_bytes=16)).took_effect
    assert not judge("offload-opt", made(on_device, arguments=state, host_bytes=16)).took_effect
    assert not judge("offload-opt", made(arguments=state)).took_effect


def test_masks_belong_to_the_weight_matrices():
    mask = leaf("state.masks['kernel']", Role.OTHER_STATE, (4,), "bool")
    assert judge("prune=0.5", made(arguments=[*STATE, mask])).took_effect
    assert not judge("prune=0.5", made(arguments=STATE)).took_effect
    assert judge("prune-structured=0.5", made(num_params=5), made(num_params=10)).took_effect
    assert not judge("prune-structured=0.5", made(num_params=10), made(num_params=10)).took_effect
    assert judge("prune-structured=0.5", made(num_params=5)).took_effect is None


def test_a_compiler_option_shows_as_a_difference_or_not_at_all():
    label = "xla:xla_gpu_autotune_level=0"
    assert judge(label, made([activations(8)]), made([activations(9)])).took_effect
    same = judge(label, made([activations(8)]), made([activations(8)]))
    assert not same.took_effect
    assert "was passed to XLA and recorded" in same.evidence
    assert judge(label, made([activations(8)])).took_effect is None


def test_fused_attention_leaves_no_number_for_each_pair_of_tokens():
    tokens = [leaf("batch['inputs']", Role.BATCH, (2, 6), "int32")]
    calls = {"__cudnn$fmhaSoftmax": 1, "__cudnn$fmhaSoftmaxBackward": 1}
    square = buffer((2, 3, 6, 6), "bf16", Category.COTANGENTS)  # of heads that are 6 wide
    pairs = dataclasses.replace(square, category=Category.ACTIVATIONS, is_of_attention=True)
    (verdict,) = verdicts(made(arguments=tokens, library_calls=calls), parse_techniques("flash"), None)
    assert verdict.took_effect
    assert judge("flash", made([square], arguments=tokens, library_calls=calls)).took_effect
    assert not judge("flash", made([pairs], arguments=tokens, library_calls=calls)).took_effect
    assert not judge("flash", made(arguments=tokens, library_calls={"__cublas$gemm": 9})).took_effect


def on_mesh(*arguments, collectives=()):
    found = made(arguments=arguments)
    topology = Topology(num_devices=8, axes={"dp": 8})
    return dataclasses.replace(
        found, target=dataclasses.replace(found.target, topology=topology), collectives=collectives
    )


def test_state_that_is_to_be_divided_has_to_be_there_and_divided():
    batch = dataclasses.replace(leaf("batch['x']", Role.BATCH), mesh_axes=("dp",))
    whole = dataclasses.replace(leaf("state.opt_state.mu", Role.OPTIMIZER_STATE), mesh_axes=())
    divided = dataclasses.replace(whole, mesh_axes=("dp",))
    assert judge("zero1", on_mesh(batch, divided)).took_effect
    assert "0 B of 16 B of optimizer_state" in judge("zero1", on_mesh(batch, whole)).evidence
    assert not judge("zero1", on_mesh(batch, whole)).took_effect
    without_state = judge("zero1", on_mesh(batch))  # stochastic gradient descent
    assert without_state.evidence == "zero1: the program takes no optimizer_state to shard over dp=8"
    assert not without_state.took_effect
    parts = CollectiveTraffic(
        kind="reduce-scatter", axes=("dp",), count=1, size_bytes=64, param_bytes=0, at_least=False
    )
    assert judge("zero2", on_mesh(batch, collectives=(parts,))).took_effect, "its gradients are divided all the same"
    assert not judge("zero2", on_mesh(batch)).took_effect


def test_the_reference_counts_only_where_it_proves_something():
    """A row is set against one that has less than itself: not against one with another technique or with the same."""
    row = made([activations(8)], label="transformer bf16+remat-mlp", **recomputed("mlp"))
    techniques = parse_techniques("bf16+remat-mlp")

    def against(label):
        return verdicts(row, techniques, made([activations(8)], label=label))[1].took_effect

    assert not against("transformer baseline")
    assert not against("transformer fp32+no-donate"), "which only say what the baseline does"
    assert not against("transformer bf16")
    assert against("transformer bf16+remat-mlp"), "nothing to compare with"
    assert against("transformer accum4"), "nothing to compare with"
    assert against("transformer a-technique-of-another-memprof"), "nothing to compare with"


def test_the_baseline_has_nothing_to_look_for():
    assert verdicts(made(), parse_techniques("baseline"), None) == ()


def test_the_most_bytes_may_be_away_from_the_peak():
    found = made([activations(2)])
    changes = (LiveChange(0, Category.ACTIVATIONS, 100), LiveChange(1, Category.ACTIVATIONS, -100))
    timeline = dataclasses.replace(found.timeline, changes=(*changes, *found.timeline.changes))
    assert most_bytes(dataclasses.replace(found, timeline=timeline), Category.ACTIVATIONS) == 100
    assert most_bytes(found, Category.GRADIENTS) == 0


def test_sizes_in_words():
    assert [in_words(size) for size in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.50 KiB", "3.00 GiB"]
