"""Known targets and the drafters trained for them (data: ``pairs.yaml``)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dflash_controller.api.problem import Problem
from dflash_controller.model.data_files import read_yaml

_ALIKE = 0.85
"""Least similarity (0 to 1) of a name to one that may have been meant."""


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """What requests hold in memory, in bytes of all ranks together, before any of it is replicated."""

    recurrent: int
    """Recurrent state of one slot, in float32; 0 for a target without recurrent layers."""
    convolution: int
    """Convolution state of one slot, in bfloat16."""
    kv: int
    """Keys and values of the target, for one token, in bfloat16."""
    kv_heads: int
    """Heads among which ranks divide ``kv``; 1 where every rank holds all of it (latent attention)."""
    drafter_kv: int
    """Keys and values of the drafter, for one token, in bfloat16."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target with the drafter trained for it."""

    target: str
    drafter: str
    trained_block_size: int | None
    """Block size of the training, the largest to serve; None if it is not published."""
    target_bytes: int
    """Size of the target's weights."""
    drafter_bytes: int
    """Size of the drafter's weights."""
    hybrid: bool
    """The target mixes attention with recurrent layers (Mamba, gated delta net)."""
    moe: bool
    """The target is a mixture of experts."""
    tensor: int
    """Recommended accelerators per replica."""
    cache: CacheSizes | None = None
    """None where the shape of the target is not known."""
    mirrors: tuple[str, ...] = ()
    """Other repositories with the same drafter."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flags (``--flag=value``) and environment variables (``NAME=value``) that the drafter's model card recommends, by engine."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Source of each fact, as text."""
    note: str = ""
    """Note for users of the pair; may be empty."""

    @property
    def drafters(self) -> tuple[str, ...]:
        """The drafter and its mirrors."""
        return (self.drafter, *self.mirrors)

    def recommended_args(self, engine: str) -> tuple[str, ...]:
        """Returns what the model card recommends for an engine; empty if nothing."""
        return self.flags.get(engine, ())


class Catalog:
    """Looks up pairs by repository name. As on Hugging Face, case does not matter."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        """Raises ValueError if a target is listed twice."""
        self._by_target: dict[str, Pair] = {}
        self._by_drafter: dict[str, list[Pair]] = {}
        for pair in pairs:
            if pair.target.lower() in self._by_target:
                raise ValueError(f"{pair.target} is listed twice")
            self._by_target[pair.target.lower()] = pair
            for drafter in pair.drafters:
                self._by_drafter.setdefault(drafter.lower(), []).append(pair)

    @staticmethod
    @cache
    def load() -> Catalog:
        """Returns the catalog of this release. Raises ValueError if its data is malformed."""
        data = read_yaml("dflash_controller.catalog", "pairs.yaml")
        return Catalog(_pair(entry, data["flags"], data["sources"]) for entry in data["pairs"])

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs in the order of the file."""
        return tuple(self._by_target.values())

    def find(self, target: str) -> Pair | None:
        """Returns the pair of a target; None if it is not known."""
        return self._by_target.get(target.lower())

    def nearest(self, target: str) -> str | None:
        """Returns the known target whose name is most like this one, which may be misspelt; None if none is."""
        found = difflib.get_close_matches(target.lower(), self._by_target, n=1, cutoff=_ALIKE)
        return self._by_target[found[0]].target if found else None

    def pair(self, target: str, drafter: str) -> Pair | None:
        """Returns the pair of exactly this target and drafter, or a mirror of the drafter; None if it is not known."""
        known = self.find(target)
        return known if known and drafter.lower() in (name.lower() for name in known.drafters) else None

    def by_drafter(self, drafter: str) -> Pair | None:
        """Returns a pair with this drafter or mirror, for facts about the drafter alone: quantised targets share them."""
        return next(iter(self._by_drafter.get(drafter.lower(), ())), None)

    def problem(self, target: str, drafter: str) -> Problem | None:
        """Returns a problem if both are known and the drafter belongs to another target, else None.

        An unknown target may be a quantised or fine-tuned copy, which the drafter can serve.
        """
        right, owner = self.find(target), self.by_drafter(drafter)
        if right is None or owner is None or self.pair(target, drafter):
            return None
        return Problem(
            "spec.drafter.model",
            f"{drafter} was trained for {owner.target}, not for {right.target}",
            f"Use {right.drafter}, or omit spec.drafter.model.",
        )


def _pair(entry: Mapping[str, Any], flags: Mapping[str, list[str]], sources: Mapping[str, str]) -> Pair:
    try:
        return Pair(
            target=entry["target"],
            drafter=entry["drafter"],
            trained_block_size=entry.get("trainedBlockSize"),
            target_bytes=entry["targetBytes"],
            drafter_bytes=entry["drafterBytes"],
            hybrid=entry["hybrid"],
            moe=entry["moe"],
            tensor=entry["tensor"],
            cache=_cache(entry["cache"]) if "cache" in entry else None,
            mirrors=tuple(entry.get("mirrors", ())),
            flags={engine: tuple(flags[name]) for engine, name in entry.get("flags", {}).items()},
            sources={fact: sources[name] for fact, name in entry["sources"].items()},
            note=entry.get("note", ""),
        )
    except KeyError as error:
        raise ValueError(f"{entry.get('target')}: {error} is missing") from error


def _cache(entry: Mapping[str, int]) -> CacheSizes:
    return CacheSizes(
        recurrent=entry.get("recurrentBytes", 0),
        convolution=entry.get("convolutionBytes", 0),
        kv=entry["kvBytes"],
        kv_heads=entry["kvHeads"],
        drafter_kv=entry["drafterKvBytes"],
    )
