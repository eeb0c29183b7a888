"""What an op name tells."""

from __future__ import annotations

import pytest

from memprof.analysis.op_names import ModulePaths, Named, first_plain_scope, named_phase, path_keys, scope_parts


@pytest.mark.parametrize(
    ("op_name", "phase"),
    [
        ("", Named.NOTHING),
        # before, after and beside differentiation
        ("jit(step)/add", Named.UNPHASED),
        ("jit(step)/Net/layers_0/dot_general", Named.UNPHASED),
        ("jit(step)/while/body/add", Named.UNPHASED),
        ("state.params['layers_0']['kernel']", Named.UNPHASED),
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
        # joined: the value that serves both is the earlier one
        ("jit(step)/transpose(jvp(Net))/mul;jit(step)/jvp(Net)/mul", Named.FORWARD),
        ("jit(step)/transpose(jvp(Net))/mul;jit(step)/add", Named.BACKWARD),
        ("jit(step)/transpose(jvp(Net))/a;jit(step)/transpose(jvp(Net))/rematted_computation/b", Named.RECOMPUTE),
        ("jit(step)/add;jit(step)/mul", Named.UNPHASED),
    ],
)
def test_the_phase_of_an_op_name(op_name: str, phase: Named) -> None:
    assert named_phase(op_name) is phase


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
    ("op_name", "scope"),
    [
        ("", ""),
        ("jit(step)/add", ""),
        ("jit(step)/jvp(Net)/dropout_0/mul", "dropout_0"),
        ("jit(step)/jvp(Net)/while/body/checkpoint/rematted_computation/dropout_0/mul", "dropout_0"),
        ("jit(step)/jvp(Net)/outer/inner/mul", "outer"),
        # a function that JAX compiled apart, with whatever scopes it has, is no module
        ("jit(step)/jit(_take)/select_n", ""),
        ("jit(step)/jvp(jit(softmax))/loss/div", ""),
        ("jit(step)/jvp(Net)/odd-name/mul", ""),
    ],
)
def test_the_first_plain_scope_of_an_op_name(op_name: str, scope: str) -> None:
    assert first_plain_scope(op_name) == scope


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("x", ["x"]),
        ("state.params['Dense_0']['kernel']", ["state", "params", "Dense_0", "kernel"]),
        ("opt_state[0].mu['b']", ["opt_state", "0", "mu", "b"]),
        ("""params["it's"]['a b'][12]""", ["params", "it's", "a b", "12"]),
        ("params['a.b']['c/d']", ["params", "a.b", "c", "d"]),
        ("params['net/~/linear']['w']", ["params", "net", "linear", "w"]),
    ],
)
def test_the_keys_of_a_path(path: str, keys: list[str]) -> None:
    assert path_keys(path) == keys


# A model as Flax's linen writes it: two blocks, an embedding, and a scale of the model's own.
_MODEL = ModulePaths(
    (
        "state.params['embed']['embedding']",
        "state.params['layers_0']['mlp']['up']['kernel']",
        "state.params['layers_0']['mlp']['up']['bias']",
        "state.params['layers_1']['mlp']['up']['kernel']",
        "state.params['scale']",
    )
)


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("state.params['layers_0']['mlp']['up']['kernel']", "layers_0/mlp/up"),
        ("state.params['embed']['embedding']", "embed"),
        ("state.params['scale']", ""),
        # optimizer state mirrors a parameter: the longest end that is a parameter's path
        ("state.opt_state[0].mu['layers_1']['mlp']['up']['kernel']", "layers_1/mlp/up"),
        ("state.opt_state[1][0].trace['embed']['embedding']", "embed"),
        ("state.opt_state[0].mu['scale']", ""),
        # what only ends alike does not
        ("state.opt_state[0].mu['up']['kernel']", ""),
        ("state.opt_state[0].count", ""),
        ("state.step", ""),
        ("batch['tokens']", ""),
        ("kernel", ""),
    ],
)
def test_the_module_of_an_argument(path: str, module: str) -> None:
    assert _MODEL.of_argument(path) == module


def test_the_longest_end_of_a_path_names_the_parameter() -> None:
    modules = ModulePaths(("params['scale']", "params['a']['scale']", "params['b']['a']['scale']"))
    paths = ("opt.mu['scale']", "opt.mu['a']['scale']", "opt.mu['b']['a']['scale']")
    assert [modules.of_argument(path) for path in paths] == ["", "a", "b/a"]


def test_state_of_a_part_of_the_parameters_is_told_by_the_end_of_their_paths() -> None:
    modules = ModulePaths(("base['up']['kernel']", "adapters['up']['low']", "adapters['down']['low']"))
    paths = ("opt.mu['up']['low']", "opt.mu['down']['low']", "opt.mu['low']", "opt.mu['kernel'][0]", "opt.count")
    assert [modules.of_argument(path) for path in paths] == ["adapters/up", "adapters/down", "", "base/up", ""]


def test_the_name_of_a_parameter_within_its_module() -> None:
    assert _MODEL.leaf_name("state.params['layers_0']['mlp']['up']['kernel']") == "kernel"


@pytest.mark.parametrize(
    ("op_name", "module"),
    [
        ("jit(step)/jvp(Net)/layers_0/mlp/up/dot_general", "layers_0/mlp/up"),
        ("jit(step)/transpose(jvp(Net))/layers_1/mlp/up/dot_general", "layers_1/mlp/up"),
        ("jit(step)/transpose(jvp(Net))/layers_1/checkpoint/rematted_computation/mlp/up/mul", "layers_1/mlp/up"),
        ("jit(step)/jvp(Net)/embed.attend/dot_general", "embed"),
        # the deepest module with parameters: what stands in it, but has none, belongs to it
        ("jit(step)/jvp(Net)/layers_0/mlp/gelu/tanh", "layers_0/mlp"),
        ("jit(step)/jvp(Net)/layers_0/softmax/layers_1/exp", "layers_0"),
        # scopes without parameters
        ("jit(step)/jvp(Net)/dropout_0/mul", "dropout_0"),
        ("jit(step)/loss/log", "loss"),
        # none
        ("jit(step)/jvp(Net)/add", ""),
        ("jit(step)/jit(_take)/select_n", ""),
        ("", ""),
    ],
)
def test_the_module_of_an_operation(op_name: str, module: str) -> None:
    assert _MODEL.of_op(op_name) == module
    assert _MODEL.of_op(op_name) == module  # from the cache


def test_a_scope_without_parameters_is_no_module_with_parameters() -> None:
    assert _MODEL.with_params("jit(step)/jvp(Net)/dropout_0/mul") == ""
    assert _MODEL.with_params("jit(step)/jvp(Net)/dropout_0/layers_0/mul") == "layers_0"


def test_layers_under_a_scan_are_one_module() -> None:
    modules = ModulePaths(("params['layers']['up']['kernel']", "params['head']['kernel']"))
    assert modules.of_op("jit(step)/jvp(Net)/while/body/layers/up/dot_general") == "layers/up"
    assert modules.of_op("jit(step)/transpose(jvp(Net))/layers/while/body/closed_call/up/mul") == "layers/up"
    assert modules.of_argument("opt_state.nu['layers']['up']['kernel']") == "layers/up"


def test_a_model_with_one_module_still_shows_it() -> None:
    modules = ModulePaths(("state.params['Dense_0']['kernel']", "state.params['Dense_0']['bias']"))
    assert modules.of_argument("state.params['Dense_0']['bias']") == "Dense_0"
    assert modules.of_op("jit(step)/jvp(Net)/Dense_0/add") == "Dense_0"


def test_variables_named_params_twice_show_modules_only() -> None:
    modules = ModulePaths(("state.params['params']['a']['kernel']", "state.params['params']['b']['kernel']"))
    assert modules.of_argument("state.params['params']['b']['kernel']") == "b"


def test_a_plain_dictionary_of_arrays_has_no_modules() -> None:
    modules = ModulePaths(("weights['w1']", "weights['w2']"))
    assert [modules.of_argument(path) for path in ("weights['w1']", "momentum['w2']", "x")] == ["", "", ""]
    assert modules.of_op("jit(step)/jvp()/dot_general") == ""


def test_a_lone_array_has_no_module() -> None:
    modules = ModulePaths(("w",))
    assert (modules.of_argument("w"), modules.leaf_name("w"), modules.of_op("jit(f)/jvp()/mul")) == ("", "w", "")


def test_a_sequence_of_layers_counts_them() -> None:
    modules = ModulePaths(("params[0]['w']", "params[0]['b']", "params[1]['w']"))
    assert modules.of_argument("params[1]['w']") == "1"
    assert modules.of_argument("opt_state[0].mu[0]['b']") == "0"
    assert modules.of_argument("opt_state[0].mu[2]['w']") == ""


def test_an_argument_of_its_own_name_leads_to_its_modules() -> None:
    modules = ModulePaths(("model.encoder.kernel", "model.decoder.kernel"))
    assert modules.of_argument("model.decoder.kernel") == "decoder"


def test_without_parameters_there_are_no_modules() -> None:
    modules = ModulePaths(())
    assert modules.of_argument("x") == ""
    assert modules.of_op("jit(f)/Net/layers_0/add") == ""
