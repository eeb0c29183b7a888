"""The optimizers that optax provides, under the names that its users know, each with the state that it declares.

All are optax's own, with its defaults but for the learning rate and, where an optimizer has one, the weight decay of
the configuration. Two of them need a word:

- `adafactor` subtracts the decayed weights as they are, not times the learning rate as the others do, so that it gets
  the product.
- `muon` is for the weights of linear maps. Left alone it would take every parameter with two axes, and with scanned
  layers those are the stacked biases, and not the stacked kernels. So it is told which parameters are matrices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from memprof.workloads.optimizer import Optimizer
from memprof.workloads.optimizer_state import (
    PARAMS_DTYPE,
    ParamLeaf,
    StateLeaf,
    StateOfParams,
    bfloat16,
    one_number,
    same,
    state_of,
)
from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax

_COUNT: Final = "int32"
_MIN_FACTORED_SIZE: Final = 128  # adafactor factors the second moment of parameters with two axes of at least this size


def _by_name(
    *,
    name: str,
    keeps: str,
    state_cost: str,
    reference: str,
    decays_weights: bool = False,
    state: StateOfParams,
    function: str | None = None,
    **options: object,
) -> Optimizer:
    """An optimizer that a function of optax makes of the learning rate, the weight decay if it takes one, and options.

    Args:
        function: its name in optax, where that is not the optimizer's.
    """
    function = function or name

    def create(config: TrainConfig) -> optax.GradientTransformation:
        import optax

        decay = {"weight_decay": config.weight_decay} if decays_weights else {}
        made: optax.GradientTransformation = attrgetter(function)(optax)(config.learning_rate, **decay, **options)
        return made

    given = ("learning_rate", *["weight_decay=weight_decay"] * decays_weights)
    set_to = (f"{option}={json.dumps(value)}" for option, value in options.items())
    return Optimizer(
        name=name,
        keeps=keeps,
        state_cost=state_cost,
        reference=reference,
        decays_weights=decays_weights,
        state=state,
        create=create,
        code=f"optax.{function}({', '.join((*given, *set_to))})",
    )


def _adafactor(config: TrainConfig) -> optax.GradientTransformation:
    import optax

    return optax.adafactor(config.learning_rate, weight_decay_rate=config.learning_rate * config.weight_decay)


def _muon(config: TrainConfig) -> optax.GradientTransformation:
    import jax
    from optax import contrib

    from memprof.workloads.transformations.param_leaves import KeyPath, param_leaf

    matrix = contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

    def matrices(params: Any) -> Any:
        def dimension_numbers(path: KeyPath, param: Any) -> contrib.MuonDimensionNumbers | None:
            return matrix if param_leaf(path, param).is_matrix else None

        return jax.tree_util.tree_map_with_path(dimension_numbers, params)

    return contrib.muon(
        config.learning_rate,
        weight_decay=config.weight_decay,
        adam_weight_decay=config.weight_decay,
        muon_weight_dimension_numbers=matrices,
    )


def _state_of_adafactor(param: ParamLeaf) -> Iterable[StateLeaf]:
    """Keeps row and column means of the two largest axes; one number stands for each part that it does not keep."""
    by_size = sorted(range(len(param.shape)), key=param.shape.__getitem__)
    if len(param.shape) < 2 or param.shape[by_size[-2]] < _MIN_FACTORED_SIZE:
        shapes = [(1,), (1,), param.shape]
    else:
        shapes = [*(param.shape[:axis] + param.shape[axis + 1 :] for axis in by_size[-2:]), (1,)]
    return (StateLeaf(shape, param.dtype) for shape in shapes)


def _state_of_sm3(param: ParamLeaf) -> Iterable[StateLeaf]:
    """Keeps a vector of each axis, beside a momentum."""
    return (*(StateLeaf((size,), param.dtype) for size in param.shape), *same(param))


def _state_of_muon(param: ParamLeaf) -> Iterable[StateLeaf]:
    """Keeps the momentum of a matrix, and Adam's two moments of anything else."""
    return same(param) if param.is_matrix else (*same(param), *same(param))


def _state_of_muon_once(params: Any) -> list[StateLeaf]:
    """Keeps, with all else, the three coefficients of its iteration and a counter each for itself and for Adam."""
    return [*state_of(_state_of_muon, scalars=(_COUNT, _COUNT))(params), StateLeaf((3,), "float32")]


_ADAM: Final = state_of(same, same, scalars=(_COUNT,))
_TWO_MOMENTS: Final = "two moments"
_KINGMA: Final = "Kingma and Ba 2014, Adam: A Method for Stochastic Optimization, arXiv:1412.6980"
_LOSHCHILOV: Final = "Loshchilov and Hutter 2017, Decoupled Weight Decay Regularization, arXiv:1711.05101"

OPTAX_OPTIMIZERS: Final = (
    _by_name(
        name="sgd",
        keeps="nothing",
        state_cost="0",
        reference="Robbins and Monro 1951, A Stochastic Approximation Method",
        state=state_of(),
    ),
    _by_name(
        name="momentum",
        keeps="the momentum",
        state_cost="4",
        reference="Sutskever et al. 2013, On the importance of initialization and momentum in deep learning",
        state=state_of(same),
        function="sgd",
        momentum=0.9,
    ),
    _by_name(
        name="adagrad",
        keeps="the sum of squared gradients",
        state_cost="4",
        reference="Duchi et al. 2011, Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
        state=state_of(same),
    ),
    _by_name(
        name="rmsprop",
        keeps="the second moment",
        state_cost="4",
        reference="Tieleman and Hinton 2012, Lecture 6.5: RMSProp",
        state=state_of(same),
    ),
    _by_name(
        name="adam",
        keeps=_TWO_MOMENTS,
        state_cost="8",
        reference=_KINGMA,
        state=_ADAM,
    ),
    _by_name(
        name="adamw",
        keeps=_TWO_MOMENTS,
        state_cost="8",
        reference=_LOSHCHILOV,
        decays_weights=True,
        state=_ADAM,
    ),
    _by_name(
        name="adamw-bf16",
        keeps="two moments, the first in bfloat16 (mu_dtype)",
        state_cost="6",
        reference=_LOSHCHILOV,
        decays_weights=True,
        state=state_of(bfloat16, same, scalars=(_COUNT,)),
        function="adamw",
        mu_dtype="bfloat16",
    ),
    _by_name(
        name="nadamw",
        keeps=_TWO_MOMENTS,
        state_cost="8",
        reference="Dozat 2016, Incorporating Nesterov Momentum into Adam",
        decays_weights=True,
        state=_ADAM,
    ),
    _by_name(
        name="adamax",
        keeps="the first moment and the largest gradient",
        state_cost="8",
        reference=_KINGMA,
        state=_ADAM,
    ),
    _by_name(
        name="amsgrad",
        keeps="two moments and the largest second one",
        state_cost="12",
        reference="Reddi et al. 2018, On the Convergence of Adam and Beyond, arXiv:1904.09237",
        state=state_of(same, same, same, scalars=(_COUNT,)),
    ),
    _by_name(
        name="radam",
        keeps=_TWO_MOMENTS,
        state_cost="8",
        reference="Liu et al. 2019, On the Variance of the Adaptive Learning Rate and Beyond, arXiv:1908.03265",
        state=_ADAM,
    ),
    _by_name(
        name="adabelief",
        keeps="the first moment and the variance around it",
        state_cost="8",
        reference="Zhuang et al. 2020, AdaBelief Optimizer, arXiv:2010.07468",
        state=_ADAM,
    ),
    _by_name(
        name="yogi",
        keeps=_TWO_MOMENTS,
        state_cost="8",
        reference="Zaheer et al. 2018, Adaptive Methods for Nonconvex Optimization",
        state=_ADAM,
    ),
    _by_name(
        name="novograd",
        keeps="the first moment, and one second moment for a whole tensor",
        state_cost="4",
        reference="Ginsburg et al. 2019, Training Deep Networks with Stochastic Normalized Gradients, arXiv:1905.11286",
        decays_weights=True,
        state=state_of(same, one_number, scalars=(_COUNT,)),
    ),
    _by_name(
        name="adan",
        keeps="three moments and the last gradient",
        state_cost="16",
        reference="Xie et al. 2022, Adan: Adaptive Nesterov Momentum Algorithm, arXiv:2208.06677",
        decays_weights=True,
        state=state_of(same, same, same, same, scalars=(_COUNT,)),
    ),
    _by_name(
        name="ademamix",
        keeps="a fast and a slow first moment, and the second moment",
        state_cost="12",
        reference="Pagliardini et al. 2024, The AdEMAMix Optimizer: Better, Faster, Older, arXiv:2409.03137",
        decays_weights=True,
        state=state_of(same, same, same, scalars=(_COUNT, _COUNT)),
        function="contrib.ademamix",
    ),
    _by_name(
        name="lion",
        keeps="the first moment",
        state_cost="4",
        reference="Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675",
        decays_weights=True,
        state=state_of(same, scalars=(_COUNT,)),
    ),
    _by_name(
        name="lars",
        keeps="the momentum",
        state_cost="4",
        reference="You et al. 2017, Large Batch Training of Convolutional Networks, arXiv:1708.03888",
        decays_weights=True,
        state=state_of(same),
    ),
    _by_name(
        name="lamb",
        keeps=_TWO_MOMENTS,
        state_cost="8",
        reference="You et al. 2019, Large Batch Optimization for Deep Learning, arXiv:1904.00962",
        decays_weights=True,
        state=_ADAM,
    ),
    _by_name(
        name="sm3",
        keeps="the momentum, and a vector for each axis",
        state_cost="4 + 4/rows + 4/columns",
        reference="Anil et al. 2019, Memory-Efficient Adaptive Optimization, arXiv:1901.11150",
        state=state_of(_state_of_sm3),
    ),
    Optimizer(
        name="adafactor",
        keeps=f"row and column means of the second moment; all of it without two axes of {_MIN_FACTORED_SIZE} or more",
        state_cost="4/rows + 4/columns (large), 4 (small)",
        reference="Shazeer and Stern 2018, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, "
        "arXiv:1804.04235",
        decays_weights=True,
        state=state_of(_state_of_adafactor, scalars=(_COUNT,)),
        create=_adafactor,
        code="optax.adafactor(learning_rate, weight_decay_rate=learning_rate * weight_decay)",
    ),
    Optimizer(
        name="muon",
        keeps="the momentum of kernels; other tensors two moments",
        state_cost="4 (kernels), 8 (others)",
        reference="Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks",
        decays_weights=True,
        state=_state_of_muon_once,
        create=_muon,
        code="optax.contrib.muon(learning_rate, weight_decay=weight_decay, adam_weight_decay=weight_decay)",
    ),
    _by_name(
        name="schedule-free",
        keeps="the second moment and a second copy of the parameters",
        state_cost="8",
        reference="Defazio et al. 2024, The Road Less Scheduled, arXiv:2405.15682",
        decays_weights=True,
        state=state_of(same, same, scalars=(_COUNT, _COUNT, PARAMS_DTYPE, PARAMS_DTYPE, PARAMS_DTYPE)),
        function="contrib.schedule_free_adamw",
    ),
)
