"""Engine versions: what one is, the table of releases (``releases.yaml``), and the tested release whose command line a version gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from dflash_controller.api.problem import Problem
from dflash_controller.engines.protocol import ReleaseProfile
from dflash_controller.model.data_files import parse_yaml

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:(\.?post|\.?dev|a|b|rc)(\d+))?(?:\+[a-z0-9.]+)?")
_RANK = {"dev": -4, "a": -3, "b": -2, "rc": -1, "post": 1}

Version = tuple[int, int, int, int, int]


@lru_cache(maxsize=256)
def version(text: str) -> Version:
    """An ordered form of ``0.5.23``, ``0.5.15.post1`` or ``0.34.0rc2``. Raises ValueError on anything else."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    major, minor, patch, kind, number = match.groups()
    return (int(major), int(minor), int(patch), _RANK[kind.lstrip(".")] if kind else 0, int(number or 0))


@dataclass(frozen=True, slots=True)
class Releases:
    """The releases of one engine: the default, the contract-tested ones, and the oldest that may run DFlash at all."""

    engine: str
    """As people write it, for instance ``SGLang``."""
    floor: str
    floor_reason: str
    default: str
    """Where neither the spec nor the operator's settings name one."""
    tested: Sequence[str]
    """Ascending."""
    overlays: Mapping[str, tuple[str, ...]]
    """Tested release -> the requirement lists that the engine contract lays over its base environment, first one wins."""
    drafters: Mapping[str, str]
    """Architecture in a drafter's config.json -> the first release that loads it. Those that every accepted release loads are left out."""

    def dialect(self, requested: str) -> ReleaseProfile | Problem:
        """The tested release itself, else the nearest older one (the oldest for what lies between floor and oldest)."""
        try:
            wanted = version(requested)
        except ValueError:
            return Problem(
                "spec.engine.version", f"{requested!r} is not a version of {self.engine}", f"Write a release such as {self.tested[-1]}."
            )
        if wanted < version(self.floor):
            message = f"{self.engine} {requested} is older than {self.floor}, {self.floor_reason}"
            return Problem("spec.engine.version", message, f"Use {self.floor} or later; {', '.join(self.tested)} are tested.")
        older = [release for release in self.tested if version(release) <= wanted]
        release = older[-1] if older else self.tested[0]
        return ReleaseProfile(release=release, tested=version(release) == wanted)


def read_table(text: str) -> Mapping[str, Releases]:
    """The releases by the engine's name in a spec. Raises ValueError for an entry that contradicts itself or names no version."""
    entries: Mapping[str, Mapping[str, Any]] = parse_yaml(text)
    return MappingProxyType({name: _releases(name, entry) for name, entry in entries.items()})


def _releases(name: str, entry: Mapping[str, Any]) -> Releases:
    overlays = {release["version"]: tuple(release["overlays"]) for release in entry["tested"]}
    tested = tuple(overlays)
    if entry["default"] != tested[-1]:
        raise ValueError(f"{name}: the default {entry['default']} is not the newest tested release, {tested[-1]}")
    ascending = [version(release) for release in (entry["floor"], *tested)]
    if len(tested) != len(entry["tested"]) or ascending != sorted(ascending):
        raise ValueError(f"{name}: floor and tested releases do not ascend")
    drafters = {name: str(release) for name, release in entry.get("drafters", {}).items()}
    for release in drafters.values():
        version(release)
    return Releases(
        engine=entry["title"],
        floor=entry["floor"],
        floor_reason=entry["floorReason"],
        default=entry["default"],
        tested=tested,
        overlays=MappingProxyType(overlays),
        drafters=MappingProxyType(drafters),
    )


TABLE = read_table(resources.files("dflash_controller.engines").joinpath("releases.yaml").read_text(encoding="utf-8"))
"""Every engine's, by the name a spec uses."""
