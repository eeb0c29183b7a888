"""What a storage is for, from what a trace saw of it. No torch is needed."""

from __future__ import annotations

import pytest

from memprof.analysis.records.categories import Category, Phase, Role
from memprof.sources.torch.categories import Depends, Facts, claim

CASES = [
    (Category.PARAMS, Role.PARAMS, False, Phase.ARGUMENT, Depends.NOTHING, True),
    (Category.OPTIMIZER_STATE, Role.OPTIMIZER_STATE, False, Phase.UPDATE, Depends.PARAMS, False),
    (Category.GRADIENTS, None, True, Phase.BACKWARD, Depends.DATA, False),
    (Category.OTHER_STATE, None, False, Phase.ARGUMENT, Depends.NOTHING, False),
    (Category.PARAM_COPIES, None, False, Phase.FORWARD, Depends.PARAMS, True),
    (Category.CONSTANTS, None, False, Phase.FORWARD, Depends.NOTHING, True),
    (Category.ACTIVATIONS, None, False, Phase.FORWARD, Depends.RANDOM, True),  # the mask of a dropout
    (Category.ACTIVATIONS, None, False, Phase.FORWARD, Depends.PARAMS | Depends.DATA, True),
    (Category.FORWARD_TEMPS, None, False, Phase.FORWARD, Depends.DATA, False),
    (Category.FORWARD_TEMPS, None, False, Phase.UNDIFFERENTIATED, Depends.DATA, False),
    (Category.RECOMPUTED, None, False, Phase.RECOMPUTE, Depends.DATA, True),
    (Category.COTANGENTS, None, False, Phase.BACKWARD, Depends.PARAMS | Depends.DATA, True),
    (Category.UPDATE_TEMPS, None, False, Phase.UPDATE, Depends.PARAMS, False),
]


@pytest.mark.parametrize(("category", "role", "is_gradient", "phase", "depends", "is_used"), CASES)
def test_what_a_storage_is_for(
    category: Category, role: Role | None, is_gradient: bool, phase: Phase, depends: Depends, is_used: bool
) -> None:
    facts = Facts(role=role, is_gradient=is_gradient, phase=phase, depends=depends, is_used_in_backward=is_used)
    assert claim(facts).category is category


def test_a_workspace_is_one_in_any_phase() -> None:
    for phase in Phase:
        facts = Facts(
            role=None,
            is_gradient=False,
            phase=phase,
            depends=Depends.NOTHING,
            is_used_in_backward=False,
            is_workspace=True,
        )
        assert claim(facts).category is Category.WORKSPACE
