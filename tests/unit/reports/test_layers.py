"""Equal layers as one."""

from __future__ import annotations

import pytest
from report_builder import buffer, node

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import ModuleNode
from memprof.reports.views.layers import any_layer, family, fold_equal_siblings, folded_paths, is_folded

_KERNEL = (("kernel", (2, 2), "f32"),)


def _dense(path: str, *, length: int = 1, params: tuple[tuple[str, tuple[int, ...], str], ...] = _KERNEL) -> ModuleNode:
    return node(path, [buffer((length,), "f32", Category.ACTIVATIONS)], params=params)


def _root(*children: ModuleNode) -> ModuleNode:
    return fold_equal_siblings(node("", (), children=children))


def test_layers_become_one_that_carries_their_sums() -> None:
    layers = tuple(
        node(f"layers_{number}", (), children=(_dense(f"layers_{number}/mlp", length=number),)) for number in range(4)
    )
    root = _root(*layers)

    # 0 + 1 + 2 + 3 elements of 4 bytes; four kernels of 4 parameters
    (folded,) = root.children
    assert (folded.path, folded.num_params, folded.size_bytes) == ("layers_{0..3}", 16, 24)
    (mlp,) = folded.children
    assert (mlp.path, mlp.num_params, mlp.size_bytes, mlp.params) == ("layers_{0..3}/mlp", 16, 24, _KERNEL)
    assert (root.num_params, root.size_bytes) == (16, 24)


def test_three_are_read_one_by_one() -> None:
    assert [child.name for child in _root(*(_dense(f"Dense_{number}") for number in range(3))).children] == [
        "Dense_0",
        "Dense_1",
        "Dense_2",
    ]


def test_layers_of_another_shape_stay_apart() -> None:
    narrow = [_dense(f"Dense_{number}") for number in (0, 2, 3, 4, 6)]
    wide = _dense("Dense_5", params=(("kernel", (2, 9), "f32"),))
    assert [child.name for child in _root(*narrow, wide).children] == ["Dense_{0,2..4,6}", "Dense_5"]


def test_a_name_without_a_number_is_never_folded_with_those_that_have_one() -> None:
    blocks = [_dense(f"block{number}", params=()) for number in range(4)]
    assert [child.name for child in _root(_dense("block", params=()), *blocks).children] == ["block", "block{0..3}"]


def test_plain_numbers_fold_too() -> None:
    layers = tuple(_dense(f"layers/{number}") for number in range(12))
    (stack,) = _root(node("layers", (), children=layers)).children
    assert [child.path for child in stack.children] == ["layers/{0..11}"]


def test_every_path_has_a_place_in_the_folded_tree() -> None:
    layers = tuple(
        node(f"layers_{number}", (), children=(_dense(f"layers_{number}/mlp"),), params=_KERNEL if number % 2 else ())
        for number in range(8)
    )
    paths = folded_paths(node("", (), children=(*layers, _dense("head"))))
    assert paths["head"] == "head"
    assert paths["layers_3/mlp"] == "layers_{1,3,5,7}/mlp"
    assert paths["layers_4"] == "layers_{0,2,4,6}"
    assert len(paths) == 18


def test_a_layer_has_its_place_among_siblings_with_similar_names() -> None:
    names = ["Dense", "Dense_{3}", "Conv_1"]  # neither of them is one of the layers
    wide = _dense("Dense_1", params=(("kernel", (2, 9), "f32"),))
    layers = [_dense(f"Dense_{number}") for number in (0, 2, 3, 4, 6)]
    paths = folded_paths(node("", (), children=(*layers, wide, *map(_dense, names))))
    assert paths == {
        "": "",
        **{layer.path: "Dense_{0,2..4,6}" for layer in layers},
        **{name: name for name in ("Dense_1", *names)},
    }


@pytest.mark.parametrize(
    ("name", "siblings", "folded"),
    [
        ("layers_3", "layers", False),
        ("Dense3", "Dense", False),
        ("3", "", False),
        ("layers_{0..11}", "layers", True),
        ("{0,2..4}", "", True),
        ("head", "", False),
        ("conv2d", "", False),
    ],
)
def test_a_name_tells_the_siblings_and_whether_it_stands_for_several(name: str, siblings: str, folded: bool) -> None:
    assert (family(name), is_folded(name)) == (siblings, folded)


def test_numbers_of_layers_in_a_path_become_one_star() -> None:
    assert any_layer("layers_3/mlp") == any_layer("layers_11/mlp") == "layers_*/mlp"
    assert any_layer("blocks/0") == "blocks/*"
    assert any_layer("layers_0/conv2d/Dense3") == "layers_*/conv2d/Dense3"
