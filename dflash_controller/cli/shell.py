"""A container's command line and environment as one line for a shell, which runs what the kubelet would run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GROUP = {
    "LWS_LEADER_ADDRESS": "address of the first node of the replica",
    "LWS_WORKER_INDEX": "rank of this node in the replica, from 0",
    "LWS_GROUP_SIZE": "number of nodes of the replica",
}
"""Variables that LeaderWorkerSet adds to every container of a group -> what they say."""


@dataclass(frozen=True, slots=True)
class Line:
    """``text`` is the line. ``unset`` are the variables that the shell must have before it runs, with what each has in the pod."""

    text: str
    unset: Mapping[str, str]


def line(argv: Sequence[str], variables: Sequence[Mapping[str, Any]]) -> Line:
    """Returns the line for a command line and the ``env`` of its container.

    References as ``$(NAME)`` are expanded as the kubelet does: to the value of a variable that has one here, else by the shell. A line with
    a variable that must be set and is not fails before it runs anything.
    """
    words = _Words()
    assignments = [words.assignment(variable) for variable in variables]
    # Shells only assign to names like Python's; env(1) takes those of Kubernetes too.
    prefix = [] if all(_IDENTIFIER.fullmatch(variable["name"]) for variable in variables) else ["env"]
    text = " ".join((*prefix, *(word for word in assignments if word), *map(words.word, argv)))
    return Line(text, words.unset)


class _Words:
    """Words of one line. Variables are known from the one that they are assigned in."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.unset: dict[str, str] = {}

    def assignment(self, variable: Mapping[str, Any]) -> str:
        """Returns ``NAME=value``; nothing for a variable that the pod need not have."""
        name, source = str(variable["name"]), variable.get("valueFrom")
        if source is None:
            value = self._known[name] = self.word(str(variable.get("value") or ""))
        else:
            value = self._from_shell(name, source)
        return f"{shlex.quote(name)}={value}" if value else ""

    def _from_shell(self, name: str, source: Mapping[str, Any]) -> str:
        """Returns the value of a variable that only a pod has; nothing if the pod need not have it either."""
        shell_name = re.sub(r"\W", "_", name, flags=re.ASCII)
        kind, reference = next(iter(source.items()))
        optional = bool(reference.get("optional"))
        self.unset[shell_name] = f"{_source(kind, reference)}{', if it is there' if optional else ''}"
        self._known[name] = f'"${shell_name}"'
        return "" if optional else f'"${{{shell_name}:?}}"'

    def word(self, text: str) -> str:
        """Returns a text as one word of the shell, with its references expanded."""
        parts: list[str] = []
        literal, at = "", 0
        for found in _REFERENCE.finditer(text):
            literal += text[at : found.start()]
            at = found.end()
            expanded = self._expanded(found[1]) if found[1] else None
            if expanded is None:
                literal += "$" if found[0] == "$$" else found[0]
                continue
            parts += [shlex.quote(literal)] if literal else []
            parts.append(expanded)
            literal = ""
        literal += text[at:]
        parts += [shlex.quote(literal)] if literal or not parts else []
        return "".join(parts)

    def _expanded(self, name: str) -> str | None:
        if name not in self._known and name in _GROUP:
            self.unset[name] = _GROUP[name]
            self._known[name] = f'"${{{name}:?}}"'
        return self._known.get(name)


def _source(kind: str, reference: Mapping[str, Any]) -> str:
    if kind == "fieldRef":
        return f"in a pod {reference['fieldPath']}"
    if kind == "resourceFieldRef":
        return f"in a pod {reference['resource']} of the container"
    what = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}.get(kind, kind)
    return f"{reference.get('key')} of the {what} {reference.get('name')}"
