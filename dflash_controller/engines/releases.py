"""Engine versions: what one is, and the tested release whose command line it gets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_controller.api.problem import Problem
from dflash_controller.engines.protocol import ReleaseProfile

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:(\.?post|\.?dev|a|b|rc)(\d+))?(?:\+[a-z0-9.]+)?")
_RANK = {"dev": -4, "a": -3, "b": -2, "rc": -1, "post": 1}

Version = tuple[int, int, int, int, int]


def version(text: str) -> Version:
    """An ordered form of ``0.5.23``, ``0.5.15.post1`` or ``0.34.0rc2``. Raises ValueError on anything else."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    major, minor, patch, kind, number = match.groups()
    return (int(major), int(minor), int(patch), _RANK[kind.lstrip(".")] if kind else 0, int(number or 0))


@dataclass(frozen=True, slots=True)
class Releases:
    """The releases of one engine: which are contract-tested and which is the oldest that may run DFlash at all."""

    engine: str
    floor: str
    floor_reason: str
    tested: Sequence[str]
    """Ascending."""

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
