"""Command-line flags as data: reading, merging by precedence, and guarding those that the operator owns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dflash_controller.api.problem import Problem

_TOKEN = re.compile(r"(--[A-Za-z0-9][A-Za-z0-9_.-]*)(?:=(.*))?", re.DOTALL)
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)([kKmMgG]?)")
_UNITS = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
EXTRA_ARGS = "spec.engine.extraArgs"


@dataclass(frozen=True, slots=True)
class Flag:
    """One option in its long form; ``value`` is None for a switch."""

    name: str
    value: str | None = None

    @classmethod
    def parse(cls, token: str) -> Flag:
        """Read ``--name`` or ``--name=value``; underscores in the name count as dashes, as in vLLM. Raises ValueError."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"not a flag: {token!r}")
        return cls(match[1].replace("_", "-"), match[2])

    @property
    def subject(self) -> str:
        """What the flag is about: ``--no-x`` is about the same thing as ``--x``."""
        return self.name.replace("--no-", "--", 1)

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


def literal(value: str) -> str:
    """A value that the kubelet passes on as it stands (it expands ``$(NAME)`` in arguments)."""
    return value.replace("$(", "$$(")


def index(flags: Iterable[Flag]) -> dict[str, str]:
    """Values by flag name, the last one winning as in argparse; a switch has the value ''."""
    return {flag.name: flag.value or "" for flag in flags}


def merge(owned: Sequence[Flag], *, defaults: Sequence[Flag], recommended: Sequence[Flag], extra: Sequence[Flag]) -> tuple[str, ...]:
    """One argument per flag: the owned ones in their order, then the others by name.

    Precedence: owned, then extra, then recommended, then defaults. A flag repeated inside one group is kept as written there.
    """
    taken = {flag.subject for flag in owned}
    rest: list[Flag] = []
    for group in (extra, recommended, defaults):
        rest += [flag for flag in group if flag.subject not in taken]
        taken |= {flag.subject for flag in group}
    return tuple(str(flag) for flag in [*owned, *sorted(rest, key=lambda flag: flag.name)])


@dataclass(frozen=True, slots=True)
class Guard:
    """Which flags extraArgs may not carry.

    Both engines accept any unambiguous prefix of an option (argparse abbreviations), so a prefix of a guarded flag is refused too.
    """

    owned: Mapping[str, str]
    """Flag -> the spec field (or reason) that decides it."""
    checked: Collection[str]
    """Flags that extraArgs may carry, in full only: their values are looked at."""

    def problems(self, tokens: Sequence[str]) -> list[Problem]:
        """One problem per token that is no flag, an owned flag, or an abbreviation of an owned or checked one."""
        return [problem for i, token in enumerate(tokens) if (problem := self._problem(f"{EXTRA_ARGS}[{i}]", token))]

    def _problem(self, field: str, token: str) -> Problem | None:
        try:
            name = Flag.parse(token).name
        except ValueError:
            return Problem(field, f"{token!r} is not one flag", "Write each flag as --name or --name=value.")
        head = name.partition(".")[0]
        if head in self.owned:
            return Problem(field, f"{name} belongs to the operator", f"Remove {name}: {self.owned[head]}.")
        if name in self.checked:
            return None
        if longer := sorted(flag for flag in {*self.owned, *self.checked} if flag.startswith(head)):
            return Problem(
                field, f"{name} would be read as an abbreviation of {longer[0]}", f"Write {longer[0]} in full, or remove {name}."
            )
        return None


def parsed(tokens: Iterable[str]) -> list[Flag]:
    """The flags among ``tokens``; what is no flag is left out (Guard reports it)."""
    flags = []
    for token in tokens:
        try:
            flags.append(Flag.parse(token))
        except ValueError:
            continue
    return flags


def variables(tokens: Iterable[str]) -> dict[str, str]:
    """Environment variables among recommended arguments: tokens ``NAME=value`` without leading dashes."""
    return {name: value for name, equals, value in (token.partition("=") for token in tokens if not token.startswith("-")) if equals}


def integer(value: str) -> int | None:
    """The value as a whole number, or None: the engine's own parser refuses what is not one.

    Both engines read ``32k`` as 32,000 and ``32K`` as 32,768 where they count tokens.
    """
    match = _NUMBER.fullmatch(value)
    return int(float(match[1]) * _UNITS[match[2]]) if match else None
