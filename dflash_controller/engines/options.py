"""The engines' options, release by release, as their own parsers know them (``options.json``).

Both engines parse with argparse: a full name counts before any other, else a name stands for every option that it begins. A switch may
have names that turn it off (``--no-x``, and vLLM's ``--disable-x``). vLLM also takes underscores for dashes (``Flag.parse``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from dflash_controller.engines.releases import TABLE, version


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a parser takes a name for."""

    option: str
    """The first name of the option in its newest release. What follows a dot stays: ``--attention-config.backend``."""
    off: bool = False
    """The name turns the option off."""
    switch: bool = field(default=False, compare=False)
    """The option takes no value. Known of full names in a release (``Options.known``)."""


@dataclass(frozen=True)
class Options:
    """The options of one engine."""

    releases: Mapping[str, Mapping[str, Meaning]]
    """By tested release, ascending, then by full name. Short names (``-tp``) are among them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Option -> the one that took its place in a later release."""

    def meaning(self, name: str, release: str) -> Meaning:
        """Returns what the release's parser takes a flag's name for; the name itself where it stands for no option or for several."""
        return self._meaning(name, release)

    @cached_property
    def _meaning(self) -> Callable[[str, str], Meaning]:
        """Every command line asks for the same names many times. Users write some of them, so not all are kept."""
        return lru_cache(maxsize=4096)(self._look_up)

    def _look_up(self, name: str, release: str) -> Meaning:
        head, dot, path = name.partition(".")
        known = self.known(release)
        found = self.full(head, release)
        if found is None:
            begun = {known[full] for full in known if full.startswith(head)}
            found = begun.pop() if len(begun) == 1 else Meaning(head)
        return Meaning(self.renamed.get(found.option, found.option) + dot + path, found.off)

    def full(self, name: str, release: str) -> Meaning | None:
        """Returns the meaning of a full name; None for any other.

        A name that only other releases have, or a negation that none has, keeps its meaning: it is no abbreviation to whoever wrote it.
        """
        if found := self.known(release).get(name) or self.anywhere.get(name):
            return found
        positive = self.anywhere.get(name.replace("--no-", "--", 1))
        return Meaning(positive.option, off=not positive.off) if positive else None

    def known(self, release: str) -> Mapping[str, Meaning]:
        """Returns the names of the nearest older tested release; of the oldest for what is older than that."""
        return self._known(release)

    @cached_property
    def _known(self) -> Callable[[str], Mapping[str, Meaning]]:
        return lru_cache(maxsize=256)(self._nearest)

    def _nearest(self, release: str) -> Mapping[str, Meaning]:
        now = version(release)
        older = [names for tested, names in self.releases.items() if version(tested) <= now]
        return older[-1] if older else next(iter(self.releases.values()))

    @cached_property
    def anywhere(self) -> Mapping[str, Meaning]:
        """Full names of every release, the newest release's meaning first."""
        return MappingProxyType({name: meaning for names in self.releases.values() for name, meaning in names.items()})


def _read(entries: list[Mapping[str, Any]], tested: tuple[str, ...]) -> Options:
    releases: dict[str, dict[str, Meaning]] = {release: {} for release in tested}
    for entry in entries:
        for release in entry["releases"]:
            off, switch = entry.get("off", ()), entry.get("switch", False)
            releases[release] |= {name: Meaning(entry["option"], name in off, switch) for name in entry["names"]}
    return Options(releases)


def _load() -> Mapping[str, Options]:
    data = json.loads(resources.files("dflash_controller.engines").joinpath("options.json").read_text(encoding="utf-8"))
    return MappingProxyType({engine: _read(entries, tuple(TABLE[engine].tested)) for engine, entries in data.items()})


OPTIONS = _load()
"""By the engine's name in a spec."""
