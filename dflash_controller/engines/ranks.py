"""Options that change the number of ranks (``ranks.yaml``): a pod has the GPUs that spec.parallelism asks for, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dflash_controller.engines.command_line import Broken, CommandLine
from dflash_controller.model.data_files import read_yaml

SPEAKS_OF_RANKS = re.compile(r"parallel|ranks?\b|nnodes|gpu-|gpus|\bray\b|elastic-ep|(^|-)(tp|pp|dp|ep|cp|dcp|pcp|dwdp|dp-supervisor)(-|$)")
"""Names of options that must be classified."""
_LARGER = "raise spec.replicas for more engines, or spec.parallelism.tensor for a larger one"
_FIELDS = "use spec.replicas and spec.parallelism"


@dataclass(frozen=True, slots=True)
class Ranks:
    """The classes of one engine's options."""

    owned: frozenset[str]
    multiply: frozenset[str]
    divide: frozenset[str]
    outside: Mapping[str, str | None]
    """With the one value that starts nothing."""
    other: frozenset[str]

    @property
    def classified(self) -> frozenset[str]:
        """Every option of the table."""
        return self.owned | self.multiply | self.divide | self.outside.keys() | self.other

    @property
    def checked(self) -> frozenset[str]:
        """Options that extraArgs may carry with some values only."""
        return self.multiply | self.divide | self.outside.keys()

    @property
    def instead(self) -> Mapping[str, str]:
        """What to do instead, as an imperative, by option that only its default suits."""
        return dict.fromkeys(self.multiply, _LARGER) | dict.fromkeys(self.outside, _FIELDS)

    def broken(self, line: CommandLine, inside: frozenset[str] = frozenset()) -> Iterator[Broken]:
        """What would start more ranks than the pods have GPUs. ``inside``: options of ``multiply`` that divide here."""
        tensor = line.request.tensor_parallel
        for name in sorted(self.multiply - inside):
            if name in line.values and line.number(name) != 1:
                yield Broken(
                    (name,),
                    f"{name}={line.values[name]} multiplies the ranks, and the pods request GPUs for spec.parallelism.tensor={tensor}",
                    f"Remove {name}; {_LARGER}",
                )
        for name in sorted(self.divide | inside):
            value = line.number(name)
            if name in line.values and (value is None or value < 1 or tensor % value):
                yield Broken(
                    (name,),
                    f"{name}={line.values[name]} does not divide spec.parallelism.tensor={tensor}",
                    f"Use a divisor of {tensor}, or change spec.parallelism.tensor",
                )
        for name in sorted(self.outside):
            if name in line.values and line.get(name) not in ("false", self.outside[name]):
                yield Broken(
                    (name,),
                    f"{name} places ranks outside the GPUs that spec.parallelism gives the pods",
                    f"Remove {name}; {_FIELDS}",
                )


def _load() -> Mapping[str, Ranks]:
    data = read_yaml("dflash_controller.engines", "ranks.yaml")
    return {
        engine: Ranks(outside=classes.pop("outside"), **{name: frozenset(options) for name, options in classes.items()})
        for engine, classes in data.items()
    }


RANKS = _load()
"""By the engine's name in a spec."""
