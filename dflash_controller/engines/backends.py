"""Which back ends run on which GPU (``backends.yaml``): an allow-list by engine, release and compute capability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.engines.flags import Flag
from dflash_controller.engines.hardware import generation, latent_attention
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import Version, version
from dflash_controller.model.data_files import read_yaml


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one value of one option runs, from a release on."""

    since: Version
    sm: frozenset[int]
    latent: frozenset[int]
    """The same for targets with multi-head latent attention."""
    measured: frozenset[int]
    """Where the drafters' authors use it: a value that a card recommends is kept there only."""
    source: str
    """The engine's own check."""


@dataclass(frozen=True, slots=True)
class Backends:
    """One engine's allow-list."""

    entries: Mapping[tuple[str, str], tuple[Entry, ...]]
    """By option and value in lower case, ascending by release."""
    defaults: Mapping[int, Mapping[str, str]]
    """By compute capability, the values that the operator sets by itself."""

    @property
    def options(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.entries)

    def runs(self, flag: Flag, request: LaunchRequest) -> bool | None:
        """Whether the value runs on the request's GPU. None if the list does not name the value, or the GPU is unknown."""
        entry, gpu = self._entry(flag, request), generation(request.gpu_product)
        if entry is None or gpu is None:
            return None
        return gpu.sm in (entry.latent if latent_attention(request) else entry.sm)

    def measured(self, flag: Flag, request: LaunchRequest) -> bool:
        """Whether a value that a card recommends is of use on the request's GPU: not listed, or measured on this generation."""
        entry, gpu = self._entry(flag, request), generation(request.gpu_product)
        return entry is None or (gpu is not None and gpu.sm in entry.measured)

    def chosen(self, request: LaunchRequest) -> Mapping[str, str]:
        """Returns the operator's own choice by option: empty for a GPU that the list does not name."""
        gpu = generation(request.gpu_product)
        return self.defaults.get(gpu.sm, {}) if gpu else {}

    def _entry(self, flag: Flag, request: LaunchRequest) -> Entry | None:
        now = version(request.release)
        entries = self.entries.get((flag.name, (flag.value or "").lower()), ())
        return next((entry for entry in reversed(entries) if now >= entry.since), None)


def _entries(engine: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], tuple[Entry, ...]]]:
    for group in engine["flags"]:
        for value, ranges in group["values"].items():
            entries = tuple(
                Entry(
                    since=version(entry.get("since", "0.0.0")),
                    sm=frozenset(entry["sm"]),
                    latent=frozenset(entry.get("latent", entry["sm"])),
                    measured=frozenset(entry.get("measured", entry["sm"])),
                    source=entry["source"],
                )
                for entry in ranges
            )
            for name in group["names"]:
                yield (name, value.lower()), entries


def _load() -> Mapping[str, Backends]:
    data = read_yaml("dflash_controller.engines", "backends.yaml")
    return {name: Backends(dict(_entries(engine)), engine["defaults"]) for name, engine in data.items()}


BACKENDS = _load()
"""By the engine's name in a spec."""
