"""Warnings in the logs of engines, each kind once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LEVEL = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|\w*Warning:")
# SGLang's lines have no level: what it takes away or does otherwise than asked is told by a word.
_WORDS = re.compile(
    r"\b(warn\w*|capp(ed|ing)|deprecat\w*|ignor(ed|ing)|overrid\w*|fall(ing)? ?back|disabl(ed|ing)|superseded|not supported)\b", re.I
)
_HEAD = re.compile(r"^(\([^)]*\)\s*)?(\[[^\]]*\]\s*)?((WARNING|ERROR|CRITICAL|INFO)\s+)?(\d\d-\d\d \d\d:\d\d:\d\d\s*)?")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")
_WIDTH = 400
_MOST = 200


@dataclass(slots=True)
class LogWarning:
    """One kind of warning: its first line, and how often it came."""

    text: str
    count: int = 1


def warnings_of(lines: Iterable[str], *, levels: bool) -> list[LogWarning]:
    """Returns the warnings of a log, at most 200 kinds, first ones first. Lines that differ in numbers only are one kind.

    ``levels``: the engine writes levels (vLLM); otherwise words tell a warning (SGLang).
    """
    found: dict[str, LogWarning] = {}
    for line in lines:
        if not (_LEVEL.search(line) or (not levels and _WORDS.search(line))):
            continue
        text = _HEAD.sub("", line.strip(), count=1)[:_WIDTH]
        kind = _NUMBER.sub("#", text)
        if kind in found:
            found[kind].count += 1
        elif len(found) < _MOST:
            found[kind] = LogWarning(text)
    return list(found.values())


def merged(many: Sequence[Sequence[LogWarning]]) -> list[LogWarning]:
    """Returns the warnings of several logs, each kind once."""
    found: dict[str, LogWarning] = {}
    for warnings in many:
        for warning in warnings:
            kind = _NUMBER.sub("#", warning.text)
            if kind in found:
                found[kind].count += warning.count
            else:
                found[kind] = LogWarning(warning.text, warning.count)
    return list(found.values())
