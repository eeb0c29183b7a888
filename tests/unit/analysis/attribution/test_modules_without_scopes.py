"""The module of a value where op names spell no modules: by the parameters that are read, and by stack traces."""

from __future__ import annotations

import pytest
from hlo import Step, program_of, values
from hlo_nodes import Node, array, f32, tuple_of

from memprof.analysis.attribution.module_paths import Keys
from memprof.analysis.attribution.source_modules import SourceModules, instance
from memprof.analysis.records.categories import Role

V = f32(4)
STACK = f32(8, 4)
FORWARD = "jit(step)/jvp()/mul"
BACKWARD = "jit(step)/transpose(jvp())/mul"


class _Blocks(Step):
    """An embedding, two blocks of two layers in a loop, and a loss, as functions call each other."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.argument("x", Role.BATCH, V)
        self.weights = {
            path: self.argument(path, Role.PARAMS, V)
            for path in ("m.emb.w", "m.blocks[0].up.w", "m.blocks[0].down.w", "m.blocks[1].up.w", "m.blocks[1].down.w")
        }
        self.in_loss = self.frame("train.py", 1, function="loss")
        self.in_model = self.frame("net.py", 2, function="Model", caller=self.in_loss)
        self.in_block = self.frame("net.py", 3, function="Block", caller=self.in_model)
        self.in_layer = self.frame("net.py", 4, function="Linear", caller=self.in_block)
        self.in_embedding = self.frame("net.py", 5, function="Embed", caller=self.in_model)
        h = self.op("emb", "multiply", V, [self.x, self.weights["m.emb.w"]], FORWARD, frame=self.in_embedding)
        for block in "01":
            h = self._block(block, h)
        self.op("loss", "exponential", V, [h], FORWARD, frame=self.in_loss)

    def _block(self, block: str, x: Node) -> Node:
        up, down = (self.weights[f"m.blocks[{block}].{layer}.w"] for layer in ("up", "down"))
        norm = self.op(f"norm{block}", "negate", V, [x], FORWARD, frame=self.in_block)
        h = self.op(f"up{block}", "multiply", V, [norm, up], FORWARD, frame=self.in_layer)
        h = self.op(f"act{block}", "tanh", V, [h], FORWARD, frame=self.in_block)
        h = self.op(f"down{block}", "multiply", V, [h, down], FORWARD, frame=self.in_layer)
        return self.op(f"sum{block}", "add", V, [x, h], FORWARD, frame=self.in_block)


def test_a_value_belongs_to_the_smallest_module_that_holds_its_maker_and_its_users() -> None:
    found = values(_Blocks())
    assert {name: value.module for name, value in found.items() if value.argument is None} == {
        "emb": "emb",
        "norm0": "blocks/0",
        "up0": "blocks/0/up",
        "act0": "blocks/0",
        "down0": "blocks/0/down",
        "sum0": "blocks",  # made in the first block, used in the second
        "norm1": "blocks",  # before its block's parameters come in, it could be of either
        "up1": "blocks/1/up",
        "act1": "blocks/1",
        "down1": "blocks/1/down",
        "sum1": "",
        "loss": "",
    }


class _Layers(Step):
    """A module `a` of two layers and a module `b`; the first layer makes `h`."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.argument("x", Role.BATCH, V)
        self.up, self.down, self.b = (self.argument(f"m.{path}.w", Role.PARAMS, V) for path in ("a.up", "a.down", "b"))
        self.h = self.op("h", "multiply", V, [self.x, self.up], FORWARD)


def test_users_in_the_backward_pass_count_only_if_the_forward_pass_has_none() -> None:
    step = _Layers()
    kept, late = (step.op(name, "tanh", V, [step.h], FORWARD) for name in ("kept", "late"))
    step.op("y", "multiply", V, [kept, step.down], FORWARD)
    step.op("of_kept", "multiply", V, [kept, step.b], BACKWARD)
    between = step.op("between", "tanh", V, [step.op("of_late", "multiply", V, [late, step.down], BACKWARD)], BACKWARD)
    step.op("dx", "multiply", V, [between, step.b], BACKWARD)
    found = values(step)
    modules = [found[name].module for name in ("kept", "late", "of_kept", "of_late", "between")]
    assert modules == ["a", "a", "b", "a/down", ""]


def test_an_operation_that_the_compiler_inserts_belongs_to_its_data_unless_that_lies_between_modules() -> None:
    step = _Layers()
    of_layer = step.op("of_layer", "negate", V, [step.h])
    act = step.op("act", "tanh", V, [step.h], FORWARD)
    of_act = step.op("of_act", "negate", V, [act])
    for number, read in enumerate((step.h, of_layer, of_act)):
        step.op(f"y{number}", "multiply", V, [read, step.b], FORWARD)
    found = values(step)
    modules = [found[name].module for name in ("h", "of_layer", "act", "of_act")]
    assert modules == ["a/up", "a/up", "", ""]


@pytest.mark.parametrize(
    ("frame", "pattern"), [("in_layer", ("blocks", "*")), ("in_block", ("blocks", "*")), ("in_loss", ())]
)
def test_a_function_belongs_to_what_its_modules_have_in_common(frame: str, pattern: Keys) -> None:
    step = _Blocks()
    read = [(step.in_embedding, "emb")]
    read += [(step.in_layer, f"blocks/{block}/{layer}") for block in "01" for layer in ("up", "down")]
    modules = SourceModules(program_of(step.proto()), read)
    assert modules.pattern(getattr(step, frame)) == pattern
    assert modules.pattern(0) is None


def test_a_pattern_fits_the_first_module_that_differs_in_numbers_alone() -> None:
    assert instance(("blocks", "*"), ["head", "blocks/3/up"]) == "blocks/3"
    assert instance(("block*",), ["block12/up"]) == "block12"
    assert instance(("blocks", "*"), ["blocks"]) is None
    assert instance(("blocks", "norm"), []) == "blocks/norm"


def test_scopes_of_a_framework_name_modules_beside_parameters_without_names() -> None:
    step = Step()
    x, kernel = step.argument("x", Role.BATCH, V), step.argument("weights[0]", Role.PARAMS, V)
    step.argument("weights[1]", Role.PARAMS, V)
    conv = step.op("conv", "multiply", V, [x, kernel], "jit(step)/jvp(conv2d)/conv_general_dilated")
    relu = step.op("relu", "maximum", V, [conv], "jit(step)/jvp(conv2d)/jit(relu)/max")
    pool = step.op("pool", "negate", V, [relu], "jit(step)/jvp(pooling)/reduce_window_max")
    step.op("dpool", "negate", V, [pool], "jit(step)/transpose(jvp(pooling))/select_and_scatter")
    found = values(step)
    modules = [found[name].module for name in ("conv", "relu", "pool", "dpool")]
    assert modules == ["conv2d", "conv2d", "pooling", "pooling"]


def test_an_expanded_operation_has_the_name_of_the_one_that_it_is_made_for() -> None:
    step = _Blocks()
    name = "jit(step)/jvp()/ragged_dot_general"
    chosen = step.op("chosen", "select", V, [step.x, step.x])
    step.op("product", "dot", V, [step.op("turned", "transpose", V, [chosen]), step.x], name)
    found = values(step)
    assert [found[each].op_name for each in ("chosen", "turned")] == [name, name]


class _Keras(Step):
    """Flat lists of parameters and moments, as Keras has them, and scopes with the names of layers."""

    def __init__(self) -> None:
        super().__init__()
        x = self.argument("x", Role.BATCH, V)
        first, last = (self.argument(f"state[0][{n}]", Role.PARAMS, V, donated=True) for n in (0, 1))
        moment = self.argument("state[2][1]", Role.OPTIMIZER_STATE, V)
        h = self.op("h", "multiply", V, [x, first], "jit(step)/jvp(conv)/mul")
        y = self.op("y", "multiply", V, [h, last], "jit(step)/jvp(fc)/mul")
        gradient = self.op("gradient", "multiply", V, [h, y], "jit(step)/transpose(jvp(fc))/mul")
        new = self.op("new_moment", "add", V, [moment, gradient], "jit(step)/add")
        self.result(self.op("new_last", "subtract", V, [last, new], "jit(step)/sub"))


def test_parameters_in_a_flat_list_are_named_by_the_scope_that_reads_them() -> None:
    found = values(_Keras())
    modules = {name: found[name].module for name in ("state[0][0]", "state[0][1]", "state[2][1]", "h", "y", "gradient")}
    assert modules == {
        "state[0][0]": "conv",
        "state[0][1]": "fc",
        "state[2][1]": "fc",  # the update of a parameter of `fc` reads it
        "h": "conv",
        "y": "fc",
        "gradient": "fc",
    }


def test_parameters_that_several_scopes_read_belong_to_the_root() -> None:
    step = Step()
    x, tied = step.argument("x", Role.BATCH, V), step.argument("state[0][0]", Role.PARAMS, V)
    step.argument("state[0][1]", Role.PARAMS, V)
    h = step.op("h", "multiply", V, [x, tied], "jit(step)/jvp(embed)/mul")
    step.result(step.op("y", "multiply", V, [h, tied], "jit(step)/jvp(head)/mul"))
    assert values(step)["state[0][0]"].module == ""


@pytest.mark.parametrize(
    ("path", "role", "module"),
    [
        ("cache['blocks'][0]['cached_key']", Role.KV_CACHE, "blocks/0"),
        ("state.blocks[0].mean", Role.OTHER_STATE, "blocks/0"),
        ("caches[0]['key']", Role.KV_CACHE, ""),  # a number alone spells none
        ("data['blocks'][0]['mask']", Role.BATCH, ""),  # data have no modules of their own
    ],
)
def test_state_belongs_to_the_module_that_its_path_spells(path: str, role: Role, module: str) -> None:
    step = Step()
    x, state = step.argument("x", Role.BATCH, V), step.argument(path, role, V, donated=True)
    up, down = (step.argument(f"m.blocks[0].{layer}.w", Role.PARAMS, V) for layer in ("up", "down"))
    step.argument("m.head.w", Role.PARAMS, V)
    h = step.op("h", "multiply", V, [x, up], FORWARD)
    new = step.op("new", "add", V, [state, h], FORWARD)
    step.op("y", "multiply", V, [new, down], FORWARD)
    step.result(new)
    assert values(step)[path].module == module


class _Sampler(Step):
    """Two blocks in a loop; each writes what its layer `qkv` makes into a cache of its own, and reads the cache."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        x = self.argument("x", Role.BATCH, V)
        weights = {
            (block, layer): self.argument(f"m.blocks[{block}].{layer}.w", Role.PARAMS, V)
            for block in "01"
            for layer in ("qkv", "out")
        }
        head, place = self.argument("m.head.w", Role.PARAMS, V), self.argument("at", Role.OTHER_STATE, array("s32"))
        in_step = self.frame("train.py", 1, function="sample")
        in_block = self.frame("net.py", 2, function="Block", caller=in_step)
        in_layer = self.frame("net.py", 3, function="Linear", caller=in_block)
        zeros = self.op("zeros", "broadcast", STACK, [self.op("zero", "constant", f32())])
        copied = self.op("copied", "copy", STACK, [zeros])  # by XLA, for the second cache
        carried = [x, *(weights[key] for key in sorted(weights)), place, zeros, copied]
        shape = tuple_of(*(each.shape for each in carried))
        body, condition = self.computation("body"), self.computation("condition")
        condition.parameter(shape)
        condition.op("less", "constant", array("pred"))
        given = body.parameter(shape)
        inner = [body.element(given, number) for number in range(len(carried))]
        h, ws, at, caches = inner[0], dict(zip(sorted(weights), inner[1:5], strict=True)), inner[5], inner[6:]
        for number, block in enumerate("01"):
            name = "jit(sample)/while/body/op"
            made = body.op(f"made{block}", "multiply", V, [h, ws[block, "qkv"]], name, frame=in_layer)
            row = body.op(f"row{block}", "bitcast", f32(1, 4), [made], name, frame=in_block)
            caches[number] = body.op(
                f"cache{block}",
                "dynamic-update-slice",
                STACK,
                [caches[number], row, at],
                name,
                frame=in_block,
                shares=(zeros, copied)[number],
            )
            read = [caches[number], caches[number]] if reads else [made, made]
            mixed = body.op(f"mixed{block}", "dot", V, read, name, frame=in_block)
            h = body.op(f"h{block}", "multiply", V, [mixed, ws[block, "out"]], name, frame=in_layer)
        body.tuple(h, *inner[1:6], *caches)
        loop = self.op("loop", "while", shape, [self.tuple(*carried)], called=[body, condition])
        self.result(self.op("logits", "multiply", V, [self.element(loop, 0), head], "jit(sample)/op", frame=in_step))


@pytest.mark.parametrize(
    ("reads", "modules"),
    [
        (True, ["blocks/0", "blocks/1"]),
        (False, ["blocks/0/qkv", "blocks/1/qkv"]),  # results of a layer, stacked up: the layer's
    ],
)
def test_a_cache_belongs_to_the_code_that_writes_and_reads_it(reads: bool, modules: list[str]) -> None:
    found = values(_Sampler(reads=reads))
    assert [found[name].module for name in ("zeros", "copied")] == modules
