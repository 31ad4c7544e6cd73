"""Options that an engine takes with certain others only (``needs.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.engines.command_line import Broken, CommandLine
from dflash_controller.engines.releases import Version, version
from dflash_controller.model.data_files import read_yaml

_CONDITION = re.compile(r"(--[a-z0-9-]+|tensor)(?:(=|>)([\w.-]+))?")
_NOTHING = frozenset({"auto", "disabled", "false", "none", "null", "off"})
"""Values that leave an option as it is without them. A switch that is on has the value ''."""
_TENSOR = "tensor"


@dataclass(frozen=True, slots=True)
class Condition:
    """What one other option must be."""

    name: str
    """An option, or ``tensor`` for spec.parallelism.tensor."""
    relation: str
    """``=``, ``>``, or empty: the option is on."""
    value: str

    def holds(self, line: CommandLine) -> bool:
        """Whether the command line meets it."""
        if self.relation == ">":
            number = line.request.tensor_parallel if self.name == _TENSOR else line.number(self.name)
            return number is not None and number > int(self.value)
        if self.relation == "=":
            return line.get(self.name) == self.value
        return self.name in line.values and line.get(self.name) not in _NOTHING

    def __str__(self) -> str:
        name = "spec.parallelism.tensor" if self.name == _TENSOR else self.name
        return f"{name} above {self.value}" if self.relation == ">" else name + self.relation + self.value


@dataclass(frozen=True, slots=True)
class Need:
    """One entry of ``needs.yaml``."""

    flag: str
    values: frozenset[str]
    least: int | None
    alternatives: tuple[tuple[Condition, ...], ...]
    why: str
    remedy: str
    since: Version
    before: Version
    later: bool
    """The engine's resolution lets it through, and a process that it starts fails."""
    source: str

    @property
    def names(self) -> frozenset[str]:
        """Every option that the entry reads."""
        return frozenset({self.flag, *(each.name for group in self.alternatives for each in group if each.name != _TENSOR)})

    def broken(self, line: CommandLine) -> Iterator[Broken]:
        """The entry as a rule."""
        if not self.since <= line.release < self.before or not self._asked(line):
            return
        shown = self.flag if line.values[self.flag] == "" else f"{self.flag}={line.values[self.flag]}"
        if self.least is not None:
            if (number := line.number(self.flag)) is not None and number < self.least:
                yield Broken((self.flag,), f"{shown} is less than {self.least}", f"Use {self.least} or more, or remove {self.flag}")
        elif not self.alternatives:
            yield Broken((self.flag,), f"{shown} {self.why}", self.remedy)
        elif not any(all(each.holds(line) for each in group) for group in self.alternatives):
            needed = " or ".join(" with ".join(map(str, group)) for group in self.alternatives)
            others = tuple(sorted(self.names - {self.flag}))
            yield Broken((self.flag, *others), f"{shown} needs {needed}", f"{self._verb} {needed}, or remove {self.flag}")

    @property
    def _verb(self) -> str:
        flags = all(each.name != _TENSOR for group in self.alternatives for each in group)
        return "Add" if flags else "Set"

    def _asked(self, line: CommandLine) -> bool:
        if self.least is not None:
            return self.flag in line.values
        if self.values:
            return line.get(self.flag) in self.values
        return Condition(self.flag, "", "").holds(line)


def broken(line: CommandLine, needs: tuple[Need, ...]) -> Iterator[Broken]:
    """What is asked for without what it needs."""
    for need in needs:
        yield from need.broken(line)


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(f"needs.yaml: {text!r} is no condition")
    return Condition(match[1], match[2] or "", match[3] or "")


def _need(entry: Mapping[str, Any]) -> Need:
    needs = entry.get("needs", [])
    if "least" not in entry and not needs and not ("why" in entry and "remedy" in entry):
        raise ValueError(f"needs.yaml: {entry['flag']} says neither what it needs nor why it never works")
    return Need(
        flag=entry["flag"],
        values=frozenset(entry.get("values", ())),
        least=entry.get("least"),
        alternatives=tuple(tuple(map(_condition, group)) for group in needs),
        why=entry.get("why", ""),
        remedy=entry.get("remedy", ""),
        since=version(entry.get("since", "0.0.0")),
        before=version(entry.get("before", "9999.0.0")),
        later=entry.get("later", False),
        source=entry["source"],
    )


def _load() -> Mapping[str, tuple[Need, ...]]:
    data = read_yaml("dflash_controller.engines", "needs.yaml")
    return {engine: tuple(map(_need, entries)) for engine, entries in data.items()}


NEEDS = _load()
"""By the engine's name in a spec."""
