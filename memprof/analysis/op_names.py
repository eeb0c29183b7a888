"""What a JAX op name tells: the phase of the step, and the path of modules.

JAX names every operation by the transformations and scopes around it, for example
`jit(step)/while/body/transpose(jvp(Transformer))/layers_0/mlp/checkpoint/rematted_computation/up/dot_general`.
XLA joins the names of operations that it merges with `;`.
"""

from __future__ import annotations

import re
from enum import IntEnum


class Named(IntEnum):
    """The phases that an op name can show, and whether there is a name at all: bits of a set."""

    NOTHING = 0  # no op name: the compiler inserted the instruction
    FORWARD = 1
    RECOMPUTE = 2
    BACKWARD = 4
    UNPHASED = 8  # an op name without a mark of differentiation: before, after or beside it


# `jvp(` marks what differentiation evaluates, `transpose(` what it derives (as a transformation, `transpose(jvp(f))`;
# the primitive `transpose` has no parenthesis), `rematted_computation` what `jax.checkpoint` evaluates again.
_FORWARD = re.compile(r"(?:^|[/(])jvp\(")
_BACKWARD = re.compile(r"(?:^|[/(])transpose\(")
_RECOMPUTE = re.compile(r"(?:^|/)rematted_computation(?:/|$)")


def named_phase(op_name: str) -> Named:
    """The phase that an op name shows.

    Of several joined names the earliest phase counts: XLA merges an operation of the backward pass with an equal one of
    the forward pass by using the forward pass's value.
    """
    if not op_name:
        return Named.NOTHING
    return min(map(_single_phase, op_name.split(";")))


def _single_phase(op_name: str) -> Named:
    if _RECOMPUTE.search(op_name):
        return Named.RECOMPUTE
    if _BACKWARD.search(op_name):
        return Named.BACKWARD
    return Named.FORWARD if _FORWARD.search(op_name) else Named.UNPHASED


_TRANSFORMED = re.compile(r"^([A-Za-z_]\w*)\((.*)\)$")
_SCOPE = re.compile(r"^[A-Za-z_]\w*$")


def scope_parts(op_name: str) -> tuple[str, ...]:
    """The scopes of an op name without JAX's transformations and without the primitive at its end.

    `jit(step)/transpose(jvp(Net))/layers_0/up/dot_general` gives `("step", "Net", "layers_0", "up")`. Flax names a
    method other than `__call__` with a dot (`embedding.attend`): only the module counts.
    """
    parts = []
    for part in op_name.split(";")[0].split("/")[:-1]:
        while match := _TRANSFORMED.match(part):
            part = match.group(2)
        parts.append(part.partition(".")[0])
    return tuple(part for part in parts if part)


def first_plain_scope(op_name: str) -> str:
    """The outermost scope that is no transformation, no function that JAX compiled apart, and no structure of JAX.

    That is a module without parameters (a dropout layer, a tied output layer) or a `jax.named_scope` of the user;
    empty where there is none.
    """
    for part in op_name.split(";")[0].split("/")[1:-1]:
        match = _TRANSFORMED.match(part)
        if match and (match.group(1) == "jit" or "jit(" in part):
            return ""
        if not match and part not in _STRUCTURE:
            return part if _SCOPE.match(part) else ""
    return ""


class ModulePaths:
    """Finds the module of an operation or an argument among the modules that own parameters.

    Parameters name the modules (`state.params['layers_0']['up']['kernel']` is owned by `layers_0/up`), and everything
    else is matched against them, so that one row of the module table shows a layer's parameters, optimizer state,
    gradients and activations together.
    """

    def __init__(self, param_paths: tuple[str, ...]) -> None:
        """Args: param_paths: paths of the leaves whose role is `params`, as JAX writes them."""
        keys = [path_keys(path) for path in param_paths]
        prefix = _common_container(keys)
        self._paths = {path: "/".join(key[prefix:-1]) for path, key in zip(param_paths, keys, strict=True)}
        self._leaf_modules = {tuple(key[prefix:]): "/".join(key[prefix:-1]) for key in keys}
        self._by_ending = _modules_by_ending(keys, prefix)
        self._known: set[tuple[str, ...]] = set()
        for key in keys:
            for stop in range(prefix + 1, len(key)):
                self._known.add(tuple(key[prefix:stop]))
        self._with_params: dict[str, str] = {}

    def of_argument(self, path: str) -> str:
        """The module of an argument leaf; empty where it belongs to none.

        For optimizer state it is the module of the parameter that it mirrors: the longest end of its path that is also
        a parameter's path names it, or else the end of the paths of parameters of one module alone. Where an optimizer
        keeps a list for each parameter (SM3), the places in the list do not count.
        """
        if path in self._paths:
            return self._paths[path]
        keys = path_keys(path)
        while len(keys) > 1:
            endings = [tuple(keys[start:]) for start in range(len(keys))]
            for modules in (self._leaf_modules, self._by_ending):
                for ending in endings:
                    if ending in modules:
                        return modules[ending]
            if not keys[-1].isdecimal():
                return ""
            keys.pop()
        return ""

    def leaf_name(self, path: str) -> str:
        """The name of a parameter within its module: `kernel`."""
        return (path_keys(path) or [path])[-1]

    def of_op(self, op_name: str) -> str:
        """The deepest module with parameters that the op name passes through; else the outermost scope without.

        Empty where there is neither.
        """
        return self.with_params(op_name) or (first_plain_scope(op_name) if self._known else "")

    def with_params(self, op_name: str) -> str:
        """The deepest module with parameters that the op name passes through; empty where there is none."""
        module = self._with_params.get(op_name)
        if module is None:
            parts = scope_parts(op_name)
            paths = [self._known_path(parts[start:]) for start in range(len(parts))]
            longest: tuple[str, ...] = max(paths, key=len, default=())
            module = self._with_params[op_name] = "/".join(longest)
        return module

    def _known_path(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The longest path of a module that the scopes spell out from the first one on."""
        path: tuple[str, ...] = ()
        for part in parts:
            if (*path, part) in self._known:
                path = (*path, part)
            elif not path or part not in _STRUCTURE:
                break
        return path


# Scopes that JAX puts between the scopes of modules.
_STRUCTURE = frozenset(
    {"while", "body", "cond", "checkpoint", "rematted_computation", "closed_call", "eval_jaxpr", "remat"}
)

_KEY = re.compile(r"\['([^']*)'\]|\[(?:\"([^\"]*)\")\]|\[(\d+)\]|\.?([A-Za-z_]\w*)")


def path_keys(path: str) -> list[str]:
    """The keys of a path in an argument tree: `state.params['a']['b']` gives `["state", "params", "a", "b"]`.

    A key may be a path of modules itself: Haiku's `p['net/~/linear']['w']` gives `["p", "net", "linear", "w"]`. Its `~`
    says that a module was made in another one's `__init__`; the names of operations do not have it.
    """
    keys = (next(group for group in match.groups() if group is not None) for match in _KEY.finditer(path))
    return [part for key in keys for part in key.split("/") if part and not part.startswith("~")]


def _modules_by_ending(keys: list[list[str]], prefix: int) -> dict[tuple[str, ...], str]:
    """The module of the parameters whose paths have an ending; empty where they are of several modules."""
    modules: dict[tuple[str, ...], str] = {}
    for key in keys:
        module = "/".join(key[prefix:-1])
        for start in range(prefix, len(key)):
            ending = tuple(key[start:])
            modules[ending] = module if modules.get(ending, module) == module else ""
    return modules


def _common_container(keys: list[list[str]]) -> int:
    """How many leading keys hold all parameters without naming a module (`state`, `params`).

    A model with a single top module still shows it: the keys up to and including `params` go where there is one, else
    the argument's own name.
    """
    if not keys:
        return 0
    common = 0
    shortest = min(map(len, keys)) - 1
    while common < shortest and len({key[common] for key in keys}) == 1:
        common += 1
    first = keys[0][:common]
    return len(first) - first[::-1].index("params") if "params" in first else min(1, common)
