"""What all deployments of the cluster have learned about a pair: a target on an accelerator with an engine, its release and parallelism.

Step times hold for every deployment of the pair, so a new one starts from what the others know. Nothing is stored for it: every deployment
keeps its own record, and with it what it borrowed, because the lender may be deleted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from dflash_controller.engines.protocol import ModelRef
from dflash_controller.engines.resolved import Resolved
from dflash_controller.tuner.learned import PairKnowledge

MOST_LENDERS = 8
"""Deployments whose knowledge of a pair is kept: those that lent last."""
MOST_PAIRS = 200
_FIELDS = ("engine", "version", "target", "extra_args", "tensor_parallel", "nodes", "gpu_product")
"""Fields of ``Resolved`` that make a pair: those that step times depend on, less the number of requests served at once."""


@dataclass(slots=True)
class _Pair:
    lenders: dict[Hashable, tuple[ModelRef, PairKnowledge]] = field(default_factory=dict)
    """Drafter and knowledge by lender, the last to lend at the end."""
    version: int = 0


class Pairs:
    """In memory; it fills as deployments are reconciled after a start."""

    def __init__(self) -> None:
        self._pairs: dict[Hashable, _Pair] = {}
        self._version = 0

    def lend(self, lender: Hashable, resolved: Resolved, knowledge: PairKnowledge) -> None:
        """Takes what a lender knows now, in place of what it lent before. One without step times lends nothing."""
        if not knowledge.pools:
            return
        key = _pair(resolved)
        pair = self._pairs.pop(key, None) or _Pair()
        pair.lenders.pop(lender, None)
        pair.lenders[lender] = resolved.drafter, knowledge
        for lenders, most in ((pair.lenders, MOST_LENDERS), (self._pairs, MOST_PAIRS - 1)):
            while len(lenders) > most:
                del lenders[next(iter(lenders))]
        self._version += 1
        pair.version = self._version
        self._pairs[key] = pair

    def version(self, resolved: Resolved) -> int:
        """Returns a number that changes with the knowledge of the pair; 0 as long as there is none."""
        pair = self._pairs.get(_pair(resolved))
        return pair.version if pair else 0

    def known(self, borrower: Hashable, resolved: Resolved) -> tuple[PairKnowledge, ...]:
        """Returns what the others know. Decays are left out where the drafter is another one."""
        pair = self._pairs.get(_pair(resolved), _Pair())
        return tuple(
            knowledge if drafter == resolved.drafter else replace(knowledge, decays=())
            for lender, (drafter, knowledge) in pair.lenders.items()
            if lender != borrower
        )


def _pair(resolved: Resolved) -> Hashable:
    return tuple(getattr(resolved, name) for name in _FIELDS)
