"""What an op name tells."""

from __future__ import annotations

import pytest

from memprof.analysis.attribution.op_names import Named, named_phase, named_phases, outer_plain_scopes, scope_parts


@pytest.mark.parametrize(
    ("op_name", "phase"),
    [
        ("", Named.NOTHING),
        # before, after and beside differentiation
        ("jit(step)/add", Named.UNPHASED),
        ("jit(step)/Net/layers_0/dot_general", Named.UNPHASED),
        ("jit(step)/while/body/add", Named.UNPHASED),
        ("state.params['layers_0']['kernel']", Named.NOTHING),
        # the primitive, and names that only look like a transformation
        ("jit(step)/transpose", Named.UNPHASED),
        ("jit(step)/jvp", Named.UNPHASED),
        ("jit(step)/my_jvp(f)/add", Named.UNPHASED),
        ("jit(step)/not_rematted_computation/add", Named.UNPHASED),
        # the forward pass
        ("jit(step)/jvp(Net)/layers_0/dot_general", Named.FORWARD),
        ("jit(step)/jvp()/mul", Named.FORWARD),
        ("jit(step)/jvp(Net)/transpose", Named.FORWARD),
        ("jit(step)/while/body/jvp(Net)/while/body/checkpoint/up/mul", Named.FORWARD),
        ("jit(step)/vmap(jvp(Net))/mul", Named.FORWARD),
        ("jit(step)/jvp(jit(relu))/max", Named.FORWARD),
        # the backward pass
        ("jit(step)/transpose(jvp(Net))/layers_0/dot_general", Named.BACKWARD),
        ("jit(step)/transpose(jvp())/mul", Named.BACKWARD),
        ("transpose(jvp(Net))/mul", Named.BACKWARD),
        ("jit(step)/while/body/closed_call/transpose(jvp(Net))/while/body/add_any", Named.BACKWARD),
        ("jit(step)/transpose(jvp(jvp(Net)))/mul", Named.BACKWARD),
        ("jit(step)/vmap(transpose(jvp(Net)))/mul", Named.BACKWARD),
        ("jit(step)/transpose(jvp(Net))/layers_0/checkpoint/up/dot_general", Named.BACKWARD),
        # what the backward pass computes again
        ("jit(step)/transpose(jvp(Net))/layers_0/checkpoint/rematted_computation/up/tanh", Named.RECOMPUTE),
        ("jit(step)/rematted_computation/tanh", Named.RECOMPUTE),
        ("jit(step)/transpose(jvp(Net))/while/body/rematted_computation", Named.RECOMPUTE),
        # The checkpointed loop of Equinox differentiates each step again within the backward pass.
        ("jit(step)/transpose(jvp(jit(solve)))/checkpointed-bwd/while/body/jvp()/mul", Named.RECOMPUTE),
        ("jit(step)/transpose(jvp(jit(solve)))/checkpointed-bwd/while/body/transpose(jvp())/mul", Named.BACKWARD),
        ("jit(step)/transpose(jvp(jit(solve)))/checkpointed-bwd/while/body/add", Named.BACKWARD),
        ("jit(step)/jvp(checkpointed-bwd)/while/body/jvp()/mul", Named.FORWARD),
        # joined: the value that serves both is the earlier one
        # A loss of gradients (jax 0.10.2 to 0.12): the outermost derivative decides.
        ("jit(step)/jvp(vmap(jvp(Net)))/up/dot_general", Named.FORWARD),
        ("jit(step)/jvp(vmap(transpose(jvp(Net))))/up/dot_general", Named.FORWARD),
        ("jit(step)/transpose(jvp(vmap(transpose(jvp(Net)))))/up/dot_general", Named.BACKWARD),
        ("jit(step)/jvp()/while/body/closed_call/transpose(jvp(Net))/mul", Named.FORWARD),
        ("jit(step)/transpose(jvp())/while/body/closed_call/jvp(Net)/mul", Named.BACKWARD),
        ("jit(step)/transpose(jvp())/jvp(transpose(jvp()))/mul", Named.BACKWARD),
        ("jit(step)/jvp(vmap(transpose(jvp(jvp(vmap(jvp(rematted_computation)))))))/up/mul", Named.FORWARD),
        ("jit(step)/jvp()/while/body/eval_jaxpr/transpose(jvp(jvp(rematted_computation)))/up/add", Named.FORWARD),
        # With `jax_remat3` the derivative comes after what is computed again (jax 0.12).
        ("jit(step)/transpose(jvp(rematted_computation))/checkpoint/eval_jaxpr/jvp(jvp(up))/tanh", Named.RECOMPUTE),
        (
            "jit(step)/transpose(jvp())/while/body/eval_jaxpr/rematted_computation/checkpoint/jvp(up)/mul",
            Named.RECOMPUTE,
        ),
        ("jit(step)/transpose(jvp(transpose(jvp(jvp(up)))))/mul", Named.BACKWARD),
        (
            "jit(step)/transpose(jvp(vmap(transpose(jvp(rematted_computation)))))/rematted_computation/jvp(up)/add",
            Named.RECOMPUTE,
        ),
        ("jit(step)/transpose(jvp(vmap(transpose(jvp(rematted_computation)))))/transpose(jvp())/mul", Named.BACKWARD),
        ("jit(step)/transpose(jvp(Net))/mul;jit(step)/jvp(Net)/mul", Named.FORWARD),
        ("jit(step)/transpose(jvp(Net))/mul;jit(step)/add", Named.BACKWARD),
        ("jit(step)/transpose(jvp(Net))/a;jit(step)/transpose(jvp(Net))/rematted_computation/b", Named.RECOMPUTE),
        ("jit(step)/add;jit(step)/mul", Named.UNPHASED),
    ],
)
def test_the_phase_of_an_op_name(op_name: str, phase: Named) -> None:
    assert named_phase(op_name) is phase


def test_a_gradient_that_is_differentiated_in_forward_mode_alone_keeps_its_own_phases() -> None:
    product = {
        "jit(step)/jvp(jvp(Net))/mul": Named.FORWARD,
        "jit(step)/jvp(transpose(jvp(Net)))/mul": Named.BACKWARD,
        "jit(step)/jvp(transpose(jvp(jvp())))/checkpoint/rematted_computation/mul": Named.RECOMPUTE,
    }
    assert named_phases(product) == product
    gradient = {"jit(step)/jvp(Net)/mul": Named.FORWARD, "jit(step)/transpose(jvp(Net))/mul": Named.BACKWARD}
    assert named_phases([*product, *gradient]) == {**product, **gradient}
    penalty = "jit(step)/transpose(jvp(transpose(jvp(Net))))/mul"
    inner = "jit(step)/jvp(transpose(jvp(Net)))/mul"
    assert named_phases([inner, penalty]) == {inner: Named.FORWARD, penalty: Named.BACKWARD}


@pytest.mark.parametrize(
    ("op_name", "scopes"),
    [
        ("", ()),
        ("jit(step)/add", ("step",)),
        ("jit(step)/transpose(jvp(Net))/layers_0/up/dot_general", ("step", "Net", "layers_0", "up")),
        ("jit(step)/jvp()/mul", ("step",)),
        ("jit(step)/jvp(Net)/embed.attend/dot_general", ("step", "Net", "embed")),
        ("jit(step)/vmap(transpose(jvp(Net)))/mul", ("step", "Net")),
        ("jit(step)/jvp(Net)/a/mul;jit(step)/jvp(Net)/b/mul", ("step", "Net", "a")),
    ],
)
def test_the_scopes_of_an_op_name(op_name: str, scopes: tuple[str, ...]) -> None:
    assert scope_parts(op_name) == scopes


@pytest.mark.parametrize(
    ("op_name", "scopes"),
    [
        ("", ()),
        ("jit(step)/add", ()),
        ("jit(step)/jvp(Net)/dropout_0/mul", ("Net", "dropout_0")),
        ("jit(step)/jvp(conv2d)/conv_general_dilated", ("conv2d",)),  # Keras
        ("jit(step)/jit(inner)/jvp(conv2d)/while/body/mul", ("conv2d",)),
        ("jit(step)/jvp(Net)/while/body/checkpoint/rematted_computation/dropout_0/mul", ("Net", "dropout_0")),
        ("jit(step)/jvp(Net)/outer/inner/mul", ("Net", "outer", "inner")),
        # a function that JAX compiled apart, with whatever scopes it has, is no module
        ("jit(step)/jit(_take)/select_n", ()),
        ("jit(step)/jvp(jit(softmax))/loss/div", ()),
        ("jit(step)/jvp(dropout)/jit(_bernoulli)/inner/add", ("dropout",)),
        # nor are subscripts of einsum, a class, other names that no module can have
        ("jit(step)/jvp(Net)/...qhd,...khd->...hqk/dot_general", ("Net",)),
        ("jit(step)/jvp(vmap(eqx.nn.Linear))/dot_general", ()),
        ("jit(step)/jvp()/odd-name/mul", ()),
        # nor is a branch of `cond` or `switch`, a loop or what a loop does with predicates
        ("jit(step)/jvp()/cond/branch_1_fun/mul", ()),
        ("jit(step)/jvp()/cond/branch_12_fun/gate/mul", ("gate",)),
        ("jit(step)/jvp()/while/body_pred/mul", ()),
    ],
)
def test_the_plain_scopes_around_an_operation(op_name: str, scopes: tuple[str, ...]) -> None:
    assert outer_plain_scopes(op_name) == scopes
