"""The modules that own parameters, by paths and by scopes."""

from __future__ import annotations

import pytest

from memprof.analysis.attribution.module_paths import Mirror, ModulePaths, ScopeMatch, path_keys


def _of_op(modules: ModulePaths, op_name: str) -> str:
    """The module that an op name alone tells, with parameters or without."""
    match = modules.match(op_name)
    return (match.certain if match else "") or "/".join(modules.plain_scopes(op_name))


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


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("cache['layers_0']['mlp']['cached_key']", "layers_0/mlp"),
        ("variables['batch_stats']['layers_1']['mlp']['up']['mean']", "layers_1/mlp/up"),
        ("model.layers_0.mlp.cached_key.value", "layers_0/mlp"),
        ("state['layers_0/~/mlp']['wkv']", "layers_0/mlp"),
        ("cache['layers_0']['norm']['mean']", "layers_0"),  # a module without parameters in one that has some
        # the collection, and the leaf, are no modules, nor is what is none
        ("embed['cached_key']", ""),
        ("cache['embed']", ""),
        ("cache['mlp']['cached_key']", ""),
        ("cache[0]['key']", ""),
    ],
)
def test_the_module_that_the_path_of_a_state_spells(path: str, module: str) -> None:
    assert _MODEL.of_state(path) == module


def test_a_number_alone_spells_no_module_and_a_list_with_a_name_does() -> None:
    assert ModulePaths(("params[0]['w']", "params[1]['w']")).of_state("cache[0]['key']") == ""
    blocks = ModulePaths(("p['blocks'][0]['attn']['w']", "p['blocks'][1]['attn']['w']", "p['head']['w']"))
    assert blocks.of_state("cache['blocks'][1]['attn']['cached_key'].value") == "blocks/1/attn"


def test_a_path_that_fits_several_trees_spells_the_one_that_alone_has_it() -> None:
    assert _GAN.of_state("state['Dense_0']['mean']") == ""
    assert _GAN.of_state("state['Dense_1']['mean']") == "d_params/Dense_1"


def test_the_longest_end_of_a_path_names_the_parameter() -> None:
    modules = ModulePaths(("params['scale']", "params['a']['scale']", "params['b']['a']['scale']"))
    paths = ("opt.mu['scale']", "opt.mu['a']['scale']", "opt.mu['b']['a']['scale']")
    assert [modules.of_argument(path) for path in paths] == ["", "a", "b/a"]


def test_state_of_a_part_of_the_parameters_is_told_by_the_end_of_their_paths() -> None:
    modules = ModulePaths(("base['up']['kernel']", "adapters['up']['low']", "adapters['down']['low']"))
    paths = ("opt.mu['up']['low']", "opt.mu['down']['low']", "opt.mu['low']", "opt.mu['kernel'][0]", "opt.count")
    assert [modules.of_argument(path) for path in paths] == ["adapters/up", "adapters/down", "", "base/up", ""]


def test_state_that_is_an_argument_of_its_own_mirrors_a_parameter_too() -> None:
    """The shortest paths: a moment and the name of a parameter, with the number of a list after it."""
    modules = ModulePaths(("params['a']['w']", "params['b']['v']"))
    paths = ("mu['w']", "mu['v'][0]", "mu['v'][0][1]", "a['w']", "w", "mu['u']", "mu['w'].count")
    assert [modules.of_argument(path) for path in paths] == ["a", "b", "b", "a", "", "", ""]


def test_a_parameter_may_itself_be_called_as_the_usual_container() -> None:
    paths = ("net['a']['params']", "net['b']['params']", "net['b']['w']")
    modules = ModulePaths(paths)
    assert [(modules.of_argument(path), modules.leaf_name(path)) for path in paths] == [
        ("a", "params"),
        ("b", "params"),
        ("b", "w"),
    ]


def test_what_fits_several_modules_mirrors_one_of_them() -> None:
    paths = ("mu['w']", "params['a']['w']", "mu['a']['w']", "mu['v']")
    modules = ModulePaths(("params['a']['w']", "params['b']['w']"))
    assert [modules.mirror(path) for path in paths] == [
        Mirror(("mu",), {("a",): "a", ("b",): "b"}),
        None,  # a parameter itself
        None,  # only one fits
        None,
    ]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("cache['layers_1']['mlp']['cached_key']", "layers_1/mlp"),
        ("variables['cache']['layers_0']['attention']['cached_value']", "layers_0"),
        ("state['layers_0']['mlp']['up']['kernel']", "layers_0/mlp/up"),
        ("cache['mlp']['k']", ""),  # of which layer, nobody says
        ("cache[0]['k']", ""),
        ("positions", ""),
    ],
)
def test_a_cache_belongs_to_the_module_that_its_path_names(path: str, module: str) -> None:
    assert _MODEL.of_state(path) == module


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
        ("jit(step)/jvp(Net)/dropout_0/mul", "Net/dropout_0"),
        ("jit(step)/loss/log", "loss"),
        ("jit(step)/jvp(Net)/add", "Net"),
        # none
        ("jit(step)/jvp()/add", ""),
        ("jit(step)/jit(_take)/select_n", ""),
        ("", ""),
    ],
)
def test_the_module_of_an_operation(op_name: str, module: str) -> None:
    assert _of_op(_MODEL, op_name) == module
    assert _of_op(_MODEL, op_name) == module  # from the cache


def test_a_scope_without_parameters_is_no_module_with_parameters() -> None:
    assert _MODEL.match("jit(step)/jvp(Net)/dropout_0/mul") is None
    match = _MODEL.match("jit(step)/jvp(Net)/dropout_0/layers_0/mul")
    assert match is not None
    assert match.certain == "layers_0"


_CLASSIFIER = ("params['embed']['w']", "params['stage']['w']", "params['head']['w']", "params['head']['up']['w']")


@pytest.mark.parametrize(
    ("op_name", "module"),
    [
        # a function that JAX compiles is called what its author likes: the step is named after no module
        ("jit(embed)/ResNet/stage/jit(relu)/max", "stage"),
        ("jit(head)/jvp(Net)/embed/dot_general", "embed"),
        ("jit(head)/jvp(Net)/add", "Net"),
        ("jit(head)/add", ""),
        ("jit(head)/up/add", "up"),
        # a module of the step's name is one
        ("jit(head)/jvp(Net)/head/dot_general", "head"),
        ("jit(head)/jvp(Net)/head/up/dot_general", "head/up"),
        # a function inside the step that is named after a module, and holds nothing else, is that module's
        ("jit(step)/jvp(jit(head))/dot_general", "head"),
        ("jit(step)/jvp(jit(head))/up/dot_general", "head/up"),
        ("jit(step)/jvp(Net)/embed/jit(head)/max", "embed"),
    ],
)
def test_a_step_is_no_module_whatever_it_is_called(op_name: str, module: str) -> None:
    assert _of_op(ModulePaths(_CLASSIFIER), op_name) == module
    assert _of_op(ModulePaths(_CLASSIFIER, {op_name, "jit(step)/add", "state.params['head']"}), op_name) == module


def test_a_function_inside_the_step_that_holds_several_modules_is_none() -> None:
    names = ["jit(step)/jvp(jit(head))/Net/embed/dot_general", "jit(step)/jvp(jit(head))/mul", "jit(step)/sub"]
    found = ModulePaths(_CLASSIFIER, names)
    assert [_of_op(found, name) for name in names] == ["embed", "", ""]


def test_a_function_that_holds_the_whole_step_is_no_module() -> None:
    names = ["jit(run)/while/body/jit(head)/jvp()/mul", "jit(run)/while/body/jit(head)/add"]
    assert [_of_op(ModulePaths(_CLASSIFIER, [*names, "head.params"]), name) for name in names] == ["", ""]
    with_others = ModulePaths(_CLASSIFIER, [*names, "jit(run)/add"])
    assert [_of_op(with_others, name) for name in names] == ["head", "head"]


def test_layers_under_a_scan_are_one_module() -> None:
    modules = ModulePaths(("params['layers']['up']['kernel']", "params['head']['kernel']"))
    assert _of_op(modules, "jit(step)/jvp(Net)/while/body/layers/up/dot_general") == "layers/up"
    assert _of_op(modules, "jit(step)/transpose(jvp(Net))/layers/while/body/closed_call/up/mul") == "layers/up"
    assert modules.of_argument("opt_state.nu['layers']['up']['kernel']") == "layers/up"


def test_a_model_with_one_module_still_shows_it() -> None:
    modules = ModulePaths(("state.params['Dense_0']['kernel']", "state.params['Dense_0']['bias']"))
    assert modules.of_argument("state.params['Dense_0']['bias']") == "Dense_0"
    assert modules.match("jit(step)/jvp(Net)/Dense_0/add") == ScopeMatch(("Net",), {(): "Dense_0"})


def test_variables_named_params_twice_show_modules_only() -> None:
    modules = ModulePaths(("state.params['params']['a']['kernel']", "state.params['params']['b']['kernel']"))
    assert modules.of_argument("state.params['params']['b']['kernel']") == "b"


def test_a_plain_dictionary_of_arrays_has_no_modules() -> None:
    modules = ModulePaths(("weights['w1']", "weights['w2']"))
    assert [modules.of_argument(path) for path in ("weights['w1']", "momentum['w2']", "x")] == ["", "", ""]
    assert _of_op(modules, "jit(step)/jvp()/dot_general") == ""


def test_a_lone_array_has_no_module() -> None:
    modules = ModulePaths(("w",))
    assert (modules.of_argument("w"), modules.leaf_name("w"), _of_op(modules, "jit(f)/jvp()/mul")) == ("", "w", "")


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
    assert _of_op(modules, "jit(f)/Net/layers_0/add") == ""


# Several trees of parameters

_GAN = ModulePaths(
    (
        "g_params['params']['Dense_0']['kernel']",
        "d_params['params']['Dense_0']['kernel']",
        "d_params['params']['Dense_1']['kernel']",
    )
)


def test_each_tree_of_parameters_is_a_top_level_module() -> None:
    paths = ("g_params['params']['Dense_0']['kernel']", "d_params['params']['Dense_1']['kernel']")
    assert [_GAN.of_argument(path) for path in paths] == ["g_params/Dense_0", "d_params/Dense_1"]
    policies = ModulePaths(("state.params['policy']['params']['a']['w']", "state.params['value']['params']['a']['w']"))
    assert policies.of_argument("state.params['value']['params']['a']['w']") == "value/a"
    assert policies.of_argument("state.opt[0].mu['policy']['params']['a']['w']") == "policy/a"


def test_a_scope_fits_the_modules_of_several_trees() -> None:
    fitting = ScopeMatch(("Generator",), {("g_params",): "g_params/Dense_0", ("d_params",): "d_params/Dense_0"})
    assert _GAN.match("jit(step)/jvp(Generator)/while/body/Dense_0/add") == fitting
    assert _GAN.match("jit(step)/jit(loss)/jvp(D)/Dense_1/add") == ScopeMatch(
        ("D",), {("d_params",): "d_params/Dense_1"}
    )
    assert fitting.certain == ""


def test_a_scope_that_spells_the_whole_path_fits_one_module() -> None:
    both = ModulePaths(("params['encoder']['Dense_0']['w']", "params['decoder']['Dense_0']['w']"))
    assert _of_op(both, "jit(step)/jvp(Net)/decoder/Dense_0/add") == "decoder/Dense_0"


def test_state_that_fits_two_trees_is_told_by_neither_path() -> None:
    path = "g_opt[0].mu['params']['Dense_0']['kernel']"
    assert _GAN.of_argument(path) == ""
    assert _GAN.mirror(path) == Mirror(
        ("g_opt", "0", "mu"), {("g_params",): "g_params/Dense_0", ("d_params",): "d_params/Dense_0"}
    )
    assert _GAN.mirror("d_opt[0].mu['params']['Dense_1']['kernel']") is None


@pytest.mark.parametrize(
    ("paths", "modules"),
    [
        # numpyro keeps the parameters in the state of its optimizer; a plain dictionary has no modules
        (("state.optim_state[1][0]['loc']", "state.optim_state[1][0]['scale']"), ["", ""]),
        (("state.optim_state[1][0]['a']['w']", "state.optim_state[1][0]['b']['w']"), ["a", "b"]),
        # names that would be the same without the containers keep them
        (("net['params']['a']['w']", "net['a']['w']"), ["params/a", "a"]),
        # an argument called `params` beside another tree is a tree like it
        (("params['a']['w']", "frozen['a']['w']"), ["params/a", "frozen/a"]),
        (("state[<flat index 0>]['a']['w']", "state[<flat index 1>]['a']['w']"), ["0/a", "1/a"]),
    ],
)
def test_containers_of_parameters_are_no_modules(paths: tuple[str, ...], modules: list[str]) -> None:
    found = ModulePaths(paths)
    assert [found.of_argument(path) for path in paths] == modules


@pytest.mark.parametrize(
    ("paths", "op_names", "module"),
    [
        # a place in a tuple holds the model, and is none of its modules
        (("state[0]['blocks'][0]['up']['w']", "state[0]['wte']['w']"), (), "blocks/0/up"),
        # no scope has the name `online`, and scopes have the names below it
        (("params.online['conv1']['w']", "params.online['head']['w']"), ("jit(f)/jvp(dqn)/conv1/dot",), "conv1"),
        # a scope has it: it is a module that holds all others
        (("params['mlp']['up']['w']", "params['mlp']['down']['w']"), ("jit(f)/jvp(Net)/mlp/up/dot",), "mlp/up"),
        # no scope tells: it may be a module
        (("params['mlp']['up']['w']", "params['mlp']['down']['w']"), ("jit(f)/jvp()/dot",), "mlp/up"),
    ],
)
def test_what_holds_all_parameters_is_no_module_of_its_own(
    paths: tuple[str, ...], op_names: tuple[str, ...], module: str
) -> None:
    assert ModulePaths(paths, op_names).of_argument(paths[0]) == module
