"""An inference server, described by its owner: programs that share weights and a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.tracing.step_checks import check_label, shown

# Keys in a program's configuration: the names of all programs of its server, and the tokens that the cache holds.
PROGRAMS, CACHE_TOKENS = "serving_programs", "serving_cache_tokens"
_SEPARATOR = ", "


@dataclass(frozen=True, slots=True)
class ServingSpec:
    """The programs of a server.

    Weights, caches and other state with equal path, shape and dtype are one array that the programs share:
    `params['head']` in every prefill bucket and in the decode step. So give a shared array the same name everywhere.

    Attributes:
        programs: the programs that the server keeps compiled, by name: each prefill bucket, the decode step, ...
        cache_tokens: number of tokens that the caches hold, by their shapes: batch times context, or pages times page
            size.
    """

    programs: Mapping[str, StepSpec]
    cache_tokens: int

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            MemprofError: a field has a wrong value.
        """
        if not isinstance(self.programs, Mapping) or not self.programs:
            raise MemprofError(
                f"programs is {shown(self.programs)}, but a mapping from names to memprof.StepSpec was expected"
            )
        for name, program in self.programs.items():
            check_label("the name of a program", name)
            if _SEPARATOR.strip() in name:
                raise MemprofError(f"the name of a program is {shown(name)}, but it must not contain a comma")
            if not isinstance(program, StepSpec):
                raise MemprofError(f"the program {name} is {shown(program)}, but a memprof.StepSpec was expected")
        if not isinstance(self.cache_tokens, int) or isinstance(self.cache_tokens, bool) or self.cache_tokens < 1:
            raise MemprofError(
                f"cache_tokens is {shown(self.cache_tokens)}, but the number of tokens that the cache holds was "
                "expected"
            )

    def program(self, number: int) -> StepSpec:
        """Return one of the programs, with a description of its server in its configuration."""
        name, program = [*self.programs.items()][number]
        config: dict[str, str | int] = {PROGRAMS: _SEPARATOR.join(self.programs), CACHE_TOKENS: self.cache_tokens}
        return replace(program, workload=name, config={**program.config, **config})


def program_names(config: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of all programs, from the configuration of one."""
    return tuple(str(config[PROGRAMS]).split(_SEPARATOR))


def cache_tokens(config: Mapping[str, object]) -> int:
    """Return the number of tokens that the cache holds, from the configuration of a program."""
    return int(str(config[CACHE_TOKENS]))
