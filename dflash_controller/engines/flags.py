"""Command-line flags as data: reading, merging by precedence, and guarding those that the operator owns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dflash_controller.api.problem import Problem
from dflash_controller.engines.options import Options

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
        """Read ``--name`` or ``--name=value``. Raises ValueError.

        Underscores count as dashes, as in vLLM, and as there only up to a dot: ``--hf-overrides.rope_theta`` keeps its key.
        """
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"not a flag: {token!r}")
        head, dot, path = match[1].partition(".")
        return cls(head.replace("_", "-") + dot + path, match[2])

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


def literal(value: str) -> str:
    """A value that the kubelet passes on as it stands (it expands ``$(NAME)`` in arguments)."""
    return value.replace("$(", "$$(")


def index(flags: Iterable[Flag]) -> dict[str, str]:
    """Values by flag name, the last one winning as in argparse; a switch has the value ''."""
    return {flag.name: flag.value or "" for flag in flags}


def merge(
    owned: Sequence[Flag],
    *,
    defaults: Sequence[Flag],
    recommended: Sequence[Flag],
    extra: Sequence[Flag],
    option: Callable[[str], str] = str,
) -> tuple[str, ...]:
    """One argument per flag: the owned ones in their order, then the others by name.

    Precedence: owned, then extra, then recommended, then defaults. A flag repeated inside one group is kept as written there. ``option``
    maps a name to the engine's option, so that an alias, an abbreviation or ``--no-x`` replaces what it is about.
    """
    taken = {option(_head(flag.name)) for flag in owned}
    rest: list[Flag] = []
    for group in (extra, recommended, defaults):
        rest += [flag for flag in group if option(_head(flag.name)) not in taken]
        taken |= {option(_head(flag.name)) for flag in group}
    return tuple(str(flag) for flag in [*owned, *sorted(rest, key=lambda flag: flag.name)])


def _head(name: str) -> str:
    """The option of a dotted name: vLLM makes one JSON object of ``--a.b`` and ``--a.c``, which replaces ``--a``."""
    return name.partition(".")[0]


@dataclass(frozen=True)
class Guard:
    """Which flags extraArgs may not carry, by any name that the engine's parser takes for them.

    An abbreviation of a guarded flag is refused: what it stands for changes with the release.
    """

    engine: str
    """As people write it."""
    options: Options
    owned: Mapping[str, str]
    """Flag -> the spec field (or reason) that decides it."""
    checked: Collection[str]
    """Flags that extraArgs may carry, in full only: their values are looked at."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Checked flag -> an imperative without its full stop: what to do instead, where no value but the default is accepted."""

    def problems(self, tokens: Sequence[str], release: str) -> list[Problem]:
        """One problem per token that is no flag, an owned flag, or an abbreviation of an owned or checked one."""
        return [problem for i, token in enumerate(tokens) if (problem := self._problem(f"{EXTRA_ARGS}[{i}]", token, release))]

    def reason(self, name: str) -> str:
        """Returns what decides a flag of the operator, whichever of its names is given; empty for any other flag."""
        return self.owned.get(name) or self._owned.get(self._option(name)) or ""

    def _problem(self, place: str, token: str, release: str) -> Problem | None:
        try:
            name = Flag.parse(token).name
        except ValueError:
            return Problem(place, f"{token!r} is not one flag", "Write each flag as --name or --name=value.")
        head = _head(name)
        meaning = self.options.full(head, release)
        reason = self.owned.get(head) or (self._owned.get(meaning.option) if meaning else None)
        if reason:
            return Problem(place, f"{name} belongs to the operator", f"Remove {name}: {reason}.")
        if meaning or head in self.checked:
            return None
        if option := self._short.get(head):
            return self._instead(place, name, f"{self.engine} has no {head}; {head[1:]} is short for {option}", option, option)
        if longer := sorted(full for full in self._guarded if full.startswith(head)):
            # of several, the one that says what to do instead
            full = next((full for full in longer if self._option(full) in (*self._owned, *self._forbidden)), longer[0])
            return self._instead(place, name, f"{name} would be read as an abbreviation of {full}", full, self._option(full))
        return None

    def _instead(self, place: str, name: str, message: str, full: str, option: str) -> Problem:
        if reason := self._owned.get(option):
            return Problem(place, message, f"Remove {name}: {reason}.")
        if remedy := self._forbidden.get(option):
            return Problem(place, message, f"Remove {name}; {remedy}.")
        return Problem(place, message, f"Write {full} in full, or remove {name}.")

    def _option(self, name: str) -> str:
        meaning = self.options.anywhere.get(name)
        return meaning.option if meaning else name

    @cached_property
    def _owned(self) -> Mapping[str, str]:
        return {self._option(name): reason for name, reason in self.owned.items()}

    @cached_property
    def _forbidden(self) -> Mapping[str, str]:
        return {self._option(name): remedy for name, remedy in self.instead.items()}

    @cached_property
    def _guarded(self) -> frozenset[str]:
        """Every full name of a guarded option in any release, its negations included."""
        options = {*self._owned, *map(self._option, self.checked)}
        return frozenset({*self.owned, *self.checked, *(name for name, found in self.options.anywhere.items() if found.option in options)})

    @cached_property
    def _short(self) -> Mapping[str, str]:
        """``--dp`` -> ``--data-parallel-size`` where ``-dp`` is short for it: what people write, and argparse reads otherwise."""
        return {f"-{name}": self._option(name) for name in self._guarded if not name.startswith("--")}


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
