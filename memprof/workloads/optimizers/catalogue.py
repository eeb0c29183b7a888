"""The optimizers by name: optax's, under the names that its users know, and memprof's own, each with a file here.

Optimizers of optax have optax's defaults, except for the learning rate and, if they have one, the weight decay, which
come from the configuration. Two of them are special:

- `adafactor` subtracts the decayed weights without multiplying by the learning rate, unlike the others. So it gets the
  product as its weight decay.
- `muon` is for the weights of linear maps. By default it would treat every parameter with two axes as one. With scanned
  layers these are the stacked biases, not the stacked kernels. So it is told which parameters are matrices.

This file imports neither jax nor optax before an optimizer is made, so that listing them stays quick.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from memprof.workloads.train_config import TrainConfig

if TYPE_CHECKING:
    import optax


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer.

    Attributes:
        name: its name, as the user writes it after `opt=`; unique.
        keeps: the state that it keeps for each parameter, in a few words.
        state_cost: bytes of state per float32 parameter, in words: `8`, `2.03`, `4 + 4/rows + 4/columns`.
        reference: where it is described.
        decays_weights: whether `weight_decay` of the configuration applies; otherwise it is ignored.
        create: makes it with the learning rate and weight decay of the configuration.
        code: the expression that makes it, with a `learning_rate` and, if it decays weights, a `weight_decay`.
    """

    name: str
    keeps: str
    state_cost: str
    reference: str
    decays_weights: bool
    create: Callable[[TrainConfig], optax.GradientTransformation]
    code: str

    @property
    def summary(self) -> str:
        """Its cost and its state, in one line."""
        decay = "decays weights" if self.decays_weights else "no weight decay"
        return f"{self.state_cost} bytes a float32 parameter: {self.keeps}; {decay}"

    def state(self, params: Any) -> Any:
        """Return its state for a pytree of parameters, as shapes and dtypes.

        The optimizer itself is evaluated. This imports jax and optax (1.3 s), but starts no device. A formula for each
        optimizer would avoid the import, but would have to follow every change of optax, and only a row with `opt=`
        needs the state.
        """
        import jax

        return jax.eval_shape(self.create(TrainConfig()).init, params)


def _of_optax(
    name: str,
    state_cost: str,
    keeps: str,
    reference: str,
    *,
    decays_weights: bool = False,
    function: str | None = None,
    **options: object,
) -> Optimizer:
    """Return an optimizer made by a function of optax, given the learning rate, any weight decay, and options.

    Args:
        function: its name in optax, if it differs from the optimizer's.
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
        create=create,
        code=f"optax.{function}({', '.join((*given, *set_to))})",
    )


def _adafactor(config: TrainConfig) -> optax.GradientTransformation:
    import optax

    return optax.adafactor(config.learning_rate, weight_decay_rate=config.learning_rate * config.weight_decay)


def _muon(config: TrainConfig) -> optax.GradientTransformation:
    import jax
    from optax import contrib

    from memprof.workloads.optimizers.galore import is_matrix

    matrix = contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

    def matrices(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, leaf: matrix if is_matrix(path, leaf) else None, params)

    return contrib.muon(
        config.learning_rate,
        weight_decay=config.weight_decay,
        adam_weight_decay=config.weight_decay,
        muon_weight_dimension_numbers=matrices,
    )


def _adam8bit(config: TrainConfig) -> optax.GradientTransformation:
    from memprof.workloads.optimizers.adam8bit import adam8bit

    return adam8bit(config.learning_rate, weight_decay=config.weight_decay)


def _galore(config: TrainConfig) -> optax.GradientTransformation:
    from memprof.workloads.optimizers.galore import galore

    return galore(config.learning_rate, weight_decay=config.weight_decay)


_TWO_MOMENTS: Final = "two moments"
_KINGMA: Final = "Kingma and Ba 2014, Adam: A Method for Stochastic Optimization, arXiv:1412.6980"
_LOSHCHILOV: Final = "Loshchilov and Hutter 2017, Decoupled Weight Decay Regularization, arXiv:1711.05101"

OPTIMIZERS: Final = (
    _of_optax("sgd", "0", "nothing", "Robbins and Monro 1951, A Stochastic Approximation Method"),
    _of_optax(
        "momentum",
        "4",
        "the momentum",
        "Sutskever et al. 2013, On the importance of initialization and momentum in deep learning",
        function="sgd",
        momentum=0.9,
    ),
    _of_optax(
        "adagrad",
        "4",
        "the sum of squared gradients",
        "Duchi et al. 2011, Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
    ),
    _of_optax("rmsprop", "4", "the second moment", "Tieleman and Hinton 2012, Lecture 6.5: RMSProp"),
    _of_optax("adam", "8", _TWO_MOMENTS, _KINGMA),
    _of_optax("adamw", "8", _TWO_MOMENTS, _LOSHCHILOV, decays_weights=True),
    _of_optax(
        "adamw-bf16",
        "6",
        "two moments, the first in bfloat16 (mu_dtype)",
        _LOSHCHILOV,
        decays_weights=True,
        function="adamw",
        mu_dtype="bfloat16",
    ),
    _of_optax(
        "nadamw", "8", _TWO_MOMENTS, "Dozat 2016, Incorporating Nesterov Momentum into Adam", decays_weights=True
    ),
    _of_optax("adamax", "8", "the first moment and the largest gradient", _KINGMA),
    _of_optax(
        "amsgrad",
        "12",
        "two moments and the largest second one",
        "Reddi et al. 2018, On the Convergence of Adam and Beyond, arXiv:1904.09237",
    ),
    _of_optax(
        "radam",
        "8",
        _TWO_MOMENTS,
        "Liu et al. 2019, On the Variance of the Adaptive Learning Rate and Beyond, arXiv:1908.03265",
    ),
    _of_optax(
        "adabelief",
        "8",
        "the first moment and the variance around it",
        "Zhuang et al. 2020, AdaBelief Optimizer, arXiv:2010.07468",
    ),
    _of_optax("yogi", "8", _TWO_MOMENTS, "Zaheer et al. 2018, Adaptive Methods for Nonconvex Optimization"),
    _of_optax(
        "novograd",
        "4",
        "the first moment, and one second moment for a whole tensor",
        "Ginsburg et al. 2019, Training Deep Networks with Stochastic Normalized Gradients, arXiv:1905.11286",
        decays_weights=True,
    ),
    _of_optax(
        "adan",
        "16",
        "three moments and the last gradient",
        "Xie et al. 2022, Adan: Adaptive Nesterov Momentum Algorithm, arXiv:2208.06677",
        decays_weights=True,
    ),
    _of_optax(
        "ademamix",
        "12",
        "a fast and a slow first moment, and the second moment",
        "Pagliardini et al. 2024, The AdEMAMix Optimizer: Better, Faster, Older, arXiv:2409.03137",
        decays_weights=True,
        function="contrib.ademamix",
    ),
    _of_optax(
        "lion",
        "4",
        "the first moment",
        "Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, arXiv:2302.06675",
        decays_weights=True,
    ),
    _of_optax(
        "lars",
        "4",
        "the momentum",
        "You et al. 2017, Large Batch Training of Convolutional Networks, arXiv:1708.03888",
        decays_weights=True,
    ),
    _of_optax(
        "lamb",
        "8",
        _TWO_MOMENTS,
        "You et al. 2019, Large Batch Optimization for Deep Learning, arXiv:1904.00962",
        decays_weights=True,
    ),
    _of_optax(
        "sm3",
        "4 + 4/rows + 4/columns",
        "the momentum, and a vector for each axis",
        "Anil et al. 2019, Memory-Efficient Adaptive Optimization, arXiv:1901.11150",
    ),
    _of_optax(
        "schedule-free",
        "8",
        "the second moment, and a second copy of the parameters",
        "Defazio et al. 2024, The Road Less Scheduled, arXiv:2405.15682",
        decays_weights=True,
        function="contrib.schedule_free_adamw",
    ),
    Optimizer(
        name="adafactor",
        keeps="row and column means of the second moment; the full second moment unless two axes have 128 or more",
        state_cost="4/rows + 4/columns (large), 4 (small)",
        reference="Shazeer and Stern 2018, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, "
        "arXiv:1804.04235",
        decays_weights=True,
        create=_adafactor,
        code="optax.adafactor(learning_rate, weight_decay_rate=learning_rate * weight_decay)",
    ),
    Optimizer(
        name="muon",
        keeps="the momentum of kernels; other tensors two moments",
        state_cost="4 (kernels), 8 (others)",
        reference="Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks",
        decays_weights=True,
        create=_muon,
        code="optax.contrib.muon(learning_rate, weight_decay=weight_decay, adam_weight_decay=weight_decay)",
    ),
    Optimizer(
        name="adam8bit",
        keeps="two 8-bit moments with a scale for each block of 256; float32 for tensors of fewer than 4,096 elements",
        state_cost="2.03",
        reference="Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861",
        decays_weights=True,
        create=_adam8bit,
        code="memprof.workloads.optimizers.adam8bit.adam8bit(learning_rate, weight_decay=weight_decay)",
    ),
    Optimizer(
        name="galore",
        keeps="two moments of the projected gradient and the projection, a quarter of the rank; other tensors two "
        "moments",
        state_cost="2 to 3 (kernels), 8 (others)",
        reference="Zhao et al. 2024, GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection, "
        "arXiv:2403.03507",
        decays_weights=True,
        create=_galore,
        code="memprof.workloads.optimizers.galore.galore(learning_rate, weight_decay=weight_decay)",
    ),
)
