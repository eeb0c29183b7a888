"""Steps with several trees of parameters: which of them a scope, a value or a moment of an optimizer belongs to."""

from __future__ import annotations

import pytest
from hlo import Step, values
from hlo_nodes import BACKWARD, FORWARD, PLAIN, UNNAMED, Node, array, f32, tuple_of

from memprof.analysis.records.categories import Role

V = f32(4)


def _modules(step: Step, *names: str) -> list[str]:
    found = values(step)
    return [found[name].module for name in names]


class _Networks(Step):
    """Two networks with a layer each, named alike, and an input."""

    def __init__(self, *, second: str = "d['params']['Dense_0']['kernel']") -> None:
        super().__init__()
        self.g = self.argument("g['params']['Dense_0']['kernel']", Role.PARAMS, V)
        self.d = self.argument(second, Role.PARAMS, V)
        self.x = self.argument("x", Role.BATCH, V)


def test_a_scope_belongs_to_the_tree_whose_parameters_are_read_in_it() -> None:
    step = _Networks()
    h = step.op("h", "multiply", V, [step.x, step.g], "jit(step)/jvp(Generator)/Dense_0/mul")
    relu = step.op("relu", "maximum", V, [h], "jit(step)/jvp(Generator)/Dense_0/max")
    tanh = step.op("tanh", "tanh", V, [relu], "jit(step)/jvp(Generator)/tanh")
    drop = step.op("drop", "negate", V, [tanh], "jit(step)/jvp(Generator)/dropout_0/neg")
    y = step.op("y", "multiply", V, [drop, step.d], "jit(step)/jvp(Discriminator)/Dense_0/mul")
    loss = step.op("loss", "negate", V, [y], "jit(step)/jvp()/neg")
    step.op("dy", "negate", V, [loss], "jit(step)/transpose(jvp(Discriminator))/Dense_0/neg")
    names = ("h", "relu", "tanh", "drop", "y", "loss", "dy")
    assert _modules(step, *names) == ["g/Dense_0", "g/Dense_0", "g", "g/dropout_0", "d/Dense_0", "", "d/Dense_0"]


def test_two_networks_of_one_class_are_told_apart_by_their_data() -> None:
    step = _Networks()
    made = []
    for name, kernel in (("g", step.g), ("d", step.d)):
        h = step.op(f"{name}_h", "multiply", V, [step.x, kernel], "jit(step)/jvp(MLP)/Dense_0/mul")
        relu = step.op(f"{name}_relu", "maximum", V, [h], "jit(step)/jvp(MLP)/Dense_0/max")
        made.append(step.op(f"{name}_tanh", "tanh", V, [relu], "jit(step)/jvp(MLP)/tanh"))
    step.op("dy", "multiply", V, made[1:] * 2, "jit(step)/transpose(jvp(MLP))/Dense_0/mul")
    names = ("g_h", "g_relu", "g_tanh", "d_h", "d_relu", "d_tanh", "dy")
    assert _modules(step, *names) == ["g/Dense_0"] * 2 + ["g"] + ["d/Dense_0"] * 2 + ["d", "d/Dense_0"]


def test_frozen_weights_and_their_adapters_are_one_network() -> None:
    step = _Networks(second="lora['Dense_0']['low']")
    merged = step.op("merged", "add", V, [step.d, step.g], "jit(step)/jvp()/add")  # equal sizes: the first argument
    h = step.op("h", "multiply", V, [step.x, merged], "jit(step)/jvp(Net)/Dense_0/mul")
    relu = step.op("relu", "maximum", V, [h], "jit(step)/jvp(Net)/Dense_0/max")
    low = step.op("low", "multiply", V, [step.x, step.d], "jit(step)/jvp(Net)/Dense_0/mul")
    both = step.op("both", "add", V, [low, relu], "jit(step)/jvp(Net)/Dense_0/add")
    # outside all scopes: the gradient of the adapter, through the merged weights
    dw = step.op("dw", "multiply", V, [both, step.x], "jit(step)/transpose(jvp(Net))/Dense_0/mul")
    grad = step.op("grad", "multiply", V, [dw, step.x], "jit(step)/transpose(jvp())/mul")
    step.result(step.op("new", "subtract", V, [step.d, grad], PLAIN))
    assert _modules(step, "merged", "h", "relu", "low", "both", "grad") == [
        "g/Dense_0",
        "g/Dense_0",
        "g/Dense_0",
        "lora/Dense_0",
        "g/Dense_0",
        "lora/Dense_0",
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_moments_belong_to_the_parameter_that_is_updated_with_them(swapped: bool) -> None:
    step = _Networks()
    ours = step.argument("opt_0[0].mu['params']['Dense_0']['kernel']", Role.OPTIMIZER_STATE, V)
    theirs = step.argument("opt_1[0].mu['params']['Dense_0']['kernel']", Role.OPTIMIZER_STATE, V)
    of_g, of_d = (theirs, ours) if swapped else (ours, theirs)
    dd = step.op("dd", "multiply", V, [step.x, step.d], BACKWARD)
    new_d = step.op("new_d", "add", V, [step.d, step.op("d_mu", "add", V, [of_d, dd], PLAIN)], PLAIN)
    # The generator's loss uses the discriminator as it has become, and with it the other optimizer's state.
    y = step.op("y", "multiply", V, [new_d, step.g], FORWARD)
    dg = step.op("dg", "multiply", V, [y, step.x], BACKWARD)
    g_mu = step.op("g_mu", "negate", V, [step.op("sum", "add", V, [of_g, dg], PLAIN)], UNNAMED)
    step.result(new_d, step.op("new_g", "add", V, [step.g, g_mu], PLAIN))
    expected = ["d/Dense_0", "g/Dense_0"] if swapped else ["g/Dense_0", "d/Dense_0"]
    assert _modules(step, *(node.name for node in (ours, theirs))) == expected
    assert _modules(step, "new_d", "new_g") == ["d/Dense_0", "g/Dense_0"]


def test_a_target_whose_update_does_not_tell_belongs_to_the_network_that_its_path_names() -> None:
    step = Step()
    for network in ("actor", "critic"):
        step.argument(f"agent.{network}.params['Dense_0']['kernel']", Role.PARAMS, V)
    target = step.argument("agent.critic.target_params['Dense_0']['kernel']", Role.OTHER_STATE, V)
    other = step.argument("agent.old['Dense_0']['kernel']", Role.OTHER_STATE, V)
    step.result(target, other)
    assert _modules(step, target.name, other.name) == ["critic/Dense_0", ""]


def test_what_each_branch_makes_for_itself_belongs_to_what_their_modules_share() -> None:
    step = Step()
    experts = [step.argument(f"params['experts'][{number}]['w']", Role.PARAMS, V) for number in range(2)]
    step.argument("params['out']['w']", Role.PARAMS, V)
    x = step.argument("x", Role.BATCH, V)
    index = step.argument("index", Role.OTHER_STATE, array("s32"))
    branches = []
    for number in range(2):
        branch = step.computation(f"branch_{number}")
        given = branch.parameter(tuple_of(V, V))
        w, h = (branch.element(given, place) for place in range(2))
        scope = f"jit(step)/jvp()/cond/branch_{number}_fun"
        made = branch.op(f"made_{number}", "multiply", V, [w, h], f"{scope}/mul")
        branch.tuple(branch.op(f"result_{number}", "tanh", V, [made], f"{scope}/tanh"))
        branches.append(branch)
    tuples: list[Node] = [step.tuple(w, x) for w in experts]
    switch = step.op("switch", "conditional", tuple_of(V), [index, *tuples], called=branches)
    step.result(step.op("dx", "negate", V, [step.element(switch, 0)], BACKWARD))
    names = ("made_0", "made_1", "result_0", "result_1")
    assert _modules(step, *names) == ["experts/0", "experts/1", "experts", "experts"]


def test_weights_side_by_side_belong_to_what_their_modules_share() -> None:
    step = Step()
    first = step.argument("params['a']['q']['w']", Role.PARAMS, V)
    second = step.argument("params['a']['k']['w']", Role.PARAMS, V)
    step.argument("params['b']['w']", Role.PARAMS, V)
    x = step.argument("x", Role.BATCH, f32(8))
    both = step.op("both", "concatenate", f32(8), [first, second], UNNAMED)
    step.op("h", "multiply", f32(8), [x, both], "jit(step)/jvp()/dot_general")
    assert _modules(step, "both", "h") == ["a", "a"]


def test_what_is_made_of_weights_of_several_layers_belongs_to_none_of_them_again() -> None:
    step = Step()
    q, k = (step.argument(f"params['a']['{name}']['w']", Role.PARAMS, V) for name in "qk")
    big = step.argument("params['b']['w']", Role.PARAMS, f32(16))
    x = step.argument("x", Role.BATCH, f32(24))
    pair = step.op("pair", "concatenate", f32(8), [q, k], UNNAMED)
    again = step.op("again", "copy", f32(8), [pair], UNNAMED)
    all_ = step.op("all", "concatenate", f32(24), [again, big], UNNAMED)
    step.op("h", "multiply", f32(24), [x, all_], "jit(step)/jvp()/dot_general")
    assert _modules(step, "pair", "again", "all", "h") == ["a", "a", "", ""]


@pytest.mark.parametrize("adapter_first", [False, True])
def test_where_two_trees_have_a_scope_together_the_larger_one_has_it(adapter_first: bool) -> None:
    step = Step()
    paths = {"net['params']['Dense_0']['kernel']": f32(16), "lora['params']['Dense_0']['low']": V}
    for path in sorted(paths) if adapter_first else paths:
        w = step.argument(path, Role.PARAMS, paths[path])
        step.op(f"made_{len(path)}", "dot", V, [w], "jit(step)/jvp(Net)/Dense_0/dot_general")
    x = step.argument("x", Role.BATCH, V)
    step.op("relu", "maximum", V, [x], "jit(step)/jvp(Net)/Dense_0/max")
    assert _modules(step, "relu") == ["net/Dense_0"]


def test_a_layer_belongs_to_its_weights_rather_than_to_their_scale() -> None:
    step = Step()
    scale = step.argument("scales['a']['s']", Role.PARAMS, f32())
    w = step.argument("params['a']['w']", Role.PARAMS, V)
    x = step.argument("x", Role.BATCH, V)
    step.op("h", "custom-call", V, [scale, w, x], "jit(step)/jvp()/dot_general")
    assert _modules(step, "h") == ["params/a"]


@pytest.mark.parametrize(("second_bias", "modules"), [(1, ["0/w", "1/b", "2/w"]), (0, ["0", "0", "1"])])
def test_scopes_that_number_layers_are_modules_where_paths_number_layers_too(
    second_bias: int, modules: list[str]
) -> None:
    step = Step()
    bias_path = "params[1]['b']['v']" if second_bias else "params[0]['b']['v']"
    last = 2 if second_bias else 1
    w = step.argument("params[0]['w']['v']", Role.PARAMS, V)
    bias = step.argument(bias_path, Role.PARAMS, V)
    v = step.argument(f"params[{last}]['w']['v']", Role.PARAMS, V)
    x = step.argument("x", Role.BATCH, V)
    h = step.op("h", "multiply", V, [x, w], "jit(step)/jvp(0)/mul")
    y = step.op("y", "add", V, [h, bias], "jit(step)/jvp(0)/add")
    z = step.op("z", "multiply", V, [y, v], f"jit(step)/jvp({last})/mul")
    step.op("dz", "multiply", V, [z, y], f"jit(step)/transpose(jvp({last}))/mul")
    assert _modules(step, "h", "y", "z") == modules
