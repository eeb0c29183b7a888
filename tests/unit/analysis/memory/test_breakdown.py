"""Sums of what is held at the peak."""

from __future__ import annotations

from report_builder import buffer

from memprof.analysis.attribution.module_paths import ModulePaths
from memprof.analysis.memory.breakdown import module_tree, sum_by, sum_by_category
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import ModuleNode

_PARAMS, _ACTIVATIONS, _FRAGMENTATION = Category.PARAMS, Category.ACTIVATIONS, Category.FRAGMENTATION


def _leaf(path: str, *shape: int, role: Role = Role.PARAMS) -> ArgumentLeaf:
    return ArgumentLeaf(
        path=path, role=role, shape=shape, dtype="float32", size_bytes=0, donated=False, parameter_number=0
    )


def test_sums_are_largest_first_and_leave_out_what_is_empty() -> None:
    buffers = [
        buffer((1,), "f32", _PARAMS),
        buffer((3,), "bf16", _ACTIVATIONS),
        buffer((5,), "f32", _ACTIVATIONS),
        buffer((0,), "s32", _ACTIVATIONS),
    ]
    # 4 + 20 of f32, 6 of bf16, none of s32, and 7 bytes that hold nothing
    sums = sum_by(buffers, lambda item: item.dtype, rest=("", 7))
    assert list(sums.items()) == [("f32", 24), ("", 7), ("bf16", 6)]
    assert sum_by([], lambda item: item.dtype, rest=("", 0)) == {}


def test_what_holds_nothing_adds_to_a_key_that_holds_something() -> None:
    buffers = [buffer((1,), "f32", _ACTIVATIONS, source=""), buffer((2,), "f32", _ACTIVATIONS, source="a.py:1")]
    assert sum_by(buffers, lambda item: item.source, rest=("", 100)) == {"": 104, "a.py:1": 8}


def test_every_category_is_listed_in_its_order() -> None:
    sums = sum_by_category([buffer((2,), "f32", _ACTIVATIONS)], fragmentation_bytes=5)
    assert sums == dict.fromkeys(Category, 0) | {_ACTIVATIONS: 8, _FRAGMENTATION: 5}
    assert list(sums) == list(Category)


def test_a_module_includes_what_is_under_it() -> None:
    leaves = [
        _leaf("params['b']['scale']", 5),
        _leaf("params['a']['up']['kernel']", 2, 3),
        _leaf("params['a']['up']['bias']", 3),
        _leaf("x", 100, role=Role.BATCH),
    ]
    buffers = [
        buffer((9,), "f32", _PARAMS, module="a/up"),
        buffer((1,), "f32", _ACTIVATIONS, module="a/up"),
        buffer((2,), "f32", _ACTIVATIONS, module="a"),
        buffer((3,), "f32", _ACTIVATIONS, module="drop/inner"),  # no parameters, and no buffer of `drop` itself
        buffer((4,), "f32", _ACTIVATIONS),
    ]

    def node(path: str, num_params: int, categories: dict[Category, int], flops: int = 0, **more: tuple) -> ModuleNode:
        parts = {"params": (), "children": (), **more}
        return ModuleNode(path=path, num_params=num_params, categories=categories, forward_flops=flops, **parts)

    up = node(
        "a/up",
        9,
        {_PARAMS: 36, _ACTIVATIONS: 4},
        flops=12,
        params=(("kernel", (2, 3), "float32"), ("bias", (3,), "float32")),
    )
    flops = {"a/up": 12, "a/silent/one": 3, "silent": 100}  # what holds nothing is of the module around it
    tree = module_tree(
        buffers,
        leaves,
        ModulePaths(tuple(leaf.path for leaf in leaves[:3])),
        fragmentation_bytes=7,
        forward_flops=flops,
    )
    # Modules in the order of the model, then those without parameters; what is of no module is the root's own.
    assert tree == node(
        "",
        14,
        {_PARAMS: 36, _ACTIVATIONS: 40, _FRAGMENTATION: 7},
        flops=12 + 3 + 100,
        children=(
            node("b", 5, {}, params=(("scale", (5,), "float32"),)),
            node("a", 9, {_PARAMS: 36, _ACTIVATIONS: 12}, flops=12 + 3, children=(up,)),
            node("drop", 0, {_ACTIVATIONS: 12}, children=(node("drop/inner", 0, {_ACTIVATIONS: 12}),)),
        ),
    )
    assert (tree.size_bytes, tree.children[2].children[0].name) == (83, "inner")
