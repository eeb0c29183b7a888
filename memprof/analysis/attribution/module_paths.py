"""The modules that own parameters, matched with op names and argument paths.

A step may have several trees of parameters: generator and discriminator, policy and value, a frozen model and its
adapters. Each tree is a top-level module (`generator/Dense_0`). The scopes in op names do not contain the tree
(`jvp(Generator)/Dense_0`), so a scope can fit modules of several trees. The data flow then decides (see
`module_flow.py`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass

from memprof.analysis.attribution.op_names import (
    around,
    is_structure,
    num_plain_scopes,
    outer_plain_scopes,
    plain_scopes,
    scope_parts,
    scopes_and_functions,
)

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScopeMatch:
    """Modules that match the scopes of an op name.

    Attributes:
        around: the plain scopes before those that spell the module, that is, the scopes of the network itself.
        modules: the modules by the root of their tree. A match with the root `()` spells the whole path of its module
            and is then the only one.
    """

    around: Keys
    modules: dict[Keys, str]

    @property
    def certain(self) -> str:
        """The module whose whole path is spelled; empty if the scopes spell only a part."""
        return self.modules.get((), "")


@dataclass(frozen=True, slots=True)
class Mirror:
    """A leaf that mirrors a parameter: one of those whose paths have the same ending as the leaf's own path.

    Attributes:
        tree: the leaf's own path before that ending; equal for all leaves of one moment of one optimizer.
        modules: the modules by the parameter's path before that ending.
    """

    tree: Keys
    modules: dict[Keys, str]


class ModulePaths:
    """Finds the module of an operation or an argument among the modules that own parameters.

    Parameters name the modules (`state.params['layers_0']['up']['kernel']` is owned by `layers_0/up`), and all other
    values are matched against them. So one row of the module table shows a layer's parameters, optimizer state,
    gradients and activations together.
    """

    def __init__(self, param_paths: tuple[str, ...], op_names: Iterable[str] = ()) -> None:
        """Find the modules in the paths of parameters.

        Args:
            param_paths: paths of the leaves with role `params`, as JAX writes them.
            op_names: the op names of the program. Their scopes distinguish a module that holds all parameters from a
                container, and a module from a compiled function with the same name.
        """
        op_names = tuple(op_names)
        keys = [path_keys(path) for path in param_paths]
        container = _common_container(keys, frozenset(part for name in op_names for part in plain_scopes(name)))
        leaves, roots = _without_inner_containers([key[container:] for key in keys])
        self._keys = dict(zip(param_paths, leaves, strict=True))
        self._leaves = {leaf: "/".join(leaf[:-1]) for leaf in leaves}
        self._by_ending: dict[Keys, dict[Keys, str]] = defaultdict(dict)
        for leaf, module in self._leaves.items():
            for start in range(len(leaf)):
                self._by_ending[leaf[start:]][leaf[:start]] = module
        self._roots = sorted(roots | {()}, key=len)
        self._known = _paths_by_root(leaves, self._roots)
        self._holders = self._functions_around_modules(op_names)
        self._matches: dict[str, ScopeMatch | None] = {}
        self._mirrors: dict[str, Mirror | None] = {}

    def of_argument(self, path: str) -> str:
        """Return the module of an argument leaf; empty if it has none, or if its path fits several.

        Optimizer state belongs to the module of the parameter that it mirrors. The longest suffix of its path that is
        also a parameter's path identifies that parameter; otherwise a suffix that only parameters of one module share.
        If an optimizer keeps a list for each parameter (SM3), the list indices are ignored.
        """
        if path in self._keys:
            return self._leaves[self._keys[path]]
        found = self._mirrored(path)
        modules = set(found.modules.values()) if found else set()
        return modules.pop() if len(modules) == 1 else ""

    def of_state(self, path: str) -> str:
        """Return the module that an argument's path spells between the name of a collection and the leaf's name.

        `cache['blocks'][0]['attn']['cached_key']` spells `blocks/0/attn`, if that is a module with parameters. Numbers
        alone spell no module. Empty if the path spells no module, or modules of several trees.
        """
        keys = tuple(path_keys(path))[1:-1]
        paths = (keys[start:stop] for start in range(len(keys)) for stop in range(start + 1, len(keys) + 1))
        known = (each for each in paths if each in self._known and not all(map(str.isdecimal, each)))
        longest = max(known, key=len, default=())
        roots = self._known.get(longest, ())
        root = () if () in roots else roots[0] if len(roots) == 1 else None
        return "" if root is None else "/".join((*root, *longest))

    def mirror(self, path: str) -> Mirror | None:
        """Return the parameters that a leaf can mirror, if they belong to several modules."""
        found = None if path in self._keys else self._mirrored(path)
        return found if found and len(set(found.modules.values())) > 1 else None

    def _mirrored(self, path: str) -> Mirror | None:
        if path not in self._mirrors:
            self._mirrors[path] = self._find_mirrored(path)
        return self._mirrors[path]

    def _find_mirrored(self, path: str) -> Mirror | None:
        keys = [key for key in path_keys(path) if key != _CONTAINER]
        while len(keys) > 1:
            for start in range(len(keys)):
                module = self._leaves.get(tuple(keys[start:]))
                if module is not None:
                    return Mirror(tuple(keys[:start]), {(): module})
            for start in range(len(keys)):
                modules = self._by_ending.get(tuple(keys[start:]))
                if modules:
                    return Mirror(tuple(keys[:start]), modules)
            if not keys[-1].isdecimal():
                return None
            keys.pop()
        return None

    def keys(self, path: str) -> Keys:
        """Return the path of a parameter: its tree, modules and name, like `("generator", "Dense_0", "kernel")`."""
        return self._keys[path]

    def root(self, keys: Keys) -> Keys:
        """Return the root of the tree of a parameter or module; `()` if there is only one tree."""
        return next((root for root in reversed(self._roots) if keys[: len(root)] == root), ())

    def leaf_name(self, path: str) -> str:
        """Return the name of a parameter within its module, like `kernel`."""
        return (path_keys(path) or [path])[-1]

    def plain_scopes(self, op_name: str) -> Keys:
        """Return the scopes of modules without parameters; empty if the step has no parameters."""
        return outer_plain_scopes(op_name) if self._keys else ()

    def match(self, op_name: str) -> ScopeMatch | None:
        """Return the deepest modules with parameters in the scopes of the op name; None if there are none."""
        scopes = around(op_name)
        if scopes not in self._matches:
            self._matches[scopes] = self._match(op_name)
        return self._matches[scopes]

    def _match(self, op_name: str) -> ScopeMatch | None:
        paths = self._paths_from_each(op_name)
        longest = max(paths, key=len, default=())
        if not longest:
            return None
        roots = self._known[longest]
        modules = {root: "/".join((*root, *longest)) for root in roots}
        outer = plain_scopes(op_name)[: num_plain_scopes(op_name, paths.index(longest))]
        return ScopeMatch(outer, {(): modules[()]} if () in modules else modules)

    def _paths_from_each(self, op_name: str) -> list[Keys]:
        """Return, for each scope, the module path that begins there; empty for a function around several modules."""
        parts = scope_parts(op_name)
        holders = [
            is_function and (place == 0 or part in self._holders)
            for place, (part, is_function) in enumerate(scopes_and_functions(op_name))
        ]
        return [() if holds else self._known_path(parts[start:]) for start, holds in enumerate(holders)]

    def _functions_around_modules(self, op_names: Iterable[str]) -> frozenset[str]:
        """Return the compiled functions that have the name of a module but hold other modules or the whole step.

        An op name begins with the step's own function, which can have any name: `jit(head)/jvp(Net)/embed/dot_general`.
        """
        scopes = dict.fromkeys(scopes_and_functions(name) for name in op_names if "/" in name)
        found: set[str] = set()
        for each in scopes:
            parts = tuple(part for part, _ in each)
            for place, (part, is_function) in enumerate(each):
                if is_function and (part,) in self._known and len(self._known_path(parts[place:])) == 1:
                    inside = range(place + 1, len(each))
                    if any(not each[n][1] and self._known_path(parts[n:]) for n in inside):
                        found.add(part)
        everywhere = frozenset.intersection(*(frozenset(each) for each in scopes)) if scopes else frozenset()
        return frozenset(found) | {part for part, is_function in everywhere if is_function}

    def _known_path(self, parts: Keys) -> Keys:
        """Return the longest path of a module that the scopes spell, beginning with the first scope."""
        path: Keys = ()
        for part in parts:
            if (*path, part) in self._known:
                path = (*path, part)
            elif not path or not is_structure(part):
                break
        return path


# Flax's name of the collection of parameters, and the usual name of the argument that holds them.
_CONTAINER = "params"
# Arguments of libraries that keep the parameters inside the optimizer's state (numpyro).
_OPTIMIZER_CONTAINERS = frozenset({"optim_state", "opt_state"})

_KEY = re.compile(r"\['([^']*)'\]|\[(?:\"([^\"]*)\")\]|\[(\d+)\]|\[<flat index (\d+)>\]|\.?([A-Za-z_]\w*)")


def path_keys(path: str) -> list[str]:
    """Return the keys of a path in an argument tree: `state.params['a']['b']` gives `["state", "params", "a", "b"]`.

    A key may itself be a path of modules: Haiku's `p['net/~/linear']['w']` gives `["p", "net", "linear", "w"]`. Its `~`
    marks a module that was made in the `__init__` of another one; op names omit it. JAX writes `[<flat index 0>]` for
    an element of a container that does not name its elements.
    """
    keys = [match[match.lastindex or 0] for match in _KEY.finditer(path)]  # the one group that matched
    return [part for key in keys for part in key.split("/") if part and not part.startswith("~")]


def _paths_by_root(leaves: Iterable[Keys], roots: Iterable[Keys]) -> dict[Keys, tuple[Keys, ...]]:
    """Return, for each path of a module below a root, the roots that contain this path."""
    known: dict[Keys, dict[Keys, None]] = defaultdict(dict)
    roots = frozenset(roots)
    for leaf in leaves:
        for start in range(len(leaf)):
            if leaf[:start] in roots:
                for stop in range(start + 1, len(leaf)):
                    known[leaf[start:stop]][leaf[:start]] = None
    return {path: tuple(found) for path, found in known.items()}


def _without_inner_containers(keys: list[list[str]]) -> tuple[list[Keys], set[Keys]]:
    """Return the paths of parameters without inner containers, and the roots of their trees.

    `g_params['params']['Dense_0']['kernel']` gives `g_params/Dense_0/kernel` in the tree `g_params`. If the first keys
    differ, each is a root too: it may be an argument, or one of several networks in one dictionary.
    """
    leaves: list[Keys] = []
    roots: set[Keys] = set()
    for key in keys:
        leaf: Keys = ()
        for place, part in enumerate(key):
            if part == _CONTAINER and 0 < place < len(key) - 1:
                roots.add(leaf)
            else:
                leaf = (*leaf, part)
        leaves.append(leaf)
    if len(set(leaves)) < len(leaves):
        return [tuple(key) for key in keys], set()
    firsts = {leaf[:1] for leaf in leaves if len(leaf) > 1}
    return leaves, roots | (firsts if len(firsts) > 1 else set())


def _common_container(keys: list[list[str]], scopes: Set[str]) -> int:
    """Return the number of leading keys that hold all parameters but name no module (`state`, `params`, `state[0]`).

    These are the keys up to and including `params`, otherwise the argument's own name. A tuple index after them names
    no module either. Neither does a name that occurs in no scope, if the names below it do (`params.online['conv1']`).
    The single top module of a model is not counted, so reports show it.
    """
    if not keys:
        return 0
    common = 0
    shortest = min(map(len, keys)) - 1
    while common < shortest and len({key[common] for key in keys}) == 1:
        common += 1
    first = keys[0][:common]
    wrapped = next((place for place, key in enumerate(first) if key in _OPTIMIZER_CONTAINERS), None)
    if _CONTAINER in first:
        stop = len(first) - first[::-1].index(_CONTAINER)
    else:
        stop = min(1, common) if wrapped is None else wrapped + 1
    while stop < common and (
        first[stop].isdecimal() or (first[stop] not in scopes and any(key[stop + 1] in scopes for key in keys))
    ):
        stop += 1
    return stop
