"""Takes out of a message of Kubernetes or of an engine what changes while the cause stays.

Every change of a message is a write of the status.
"""

from __future__ import annotations

import re

MAX_WORDS = 500
"""Characters kept of an engine's last words. The end says most, as in a traceback."""

_COUNTED = re.compile(r"^\d+ (?=\S)")
_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), ""),
    (re.compile(r"\b(?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), ""),
    (re.compile(r"\bpid[ =:]*\d+", re.IGNORECASE), "pid"),
    (re.compile(r"\bProcess[ -]\d+"), "process"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"(\b(?:\d{1,3}\.){3}\d{1,3}|\]):\d+(?=->)"), r"\1"),
)


def steady(text: str) -> str:
    """Returns the text on one line, without times, process ids, memory addresses and local ports."""
    for pattern, put in _CHANGING:
        text = pattern.sub(put, text)
    return " ".join(text.split())


def last_words(text: str) -> str:
    """Returns the end of what a container said."""
    text = steady(text)
    return text if len(text) <= MAX_WORDS else f"…{text[-MAX_WORDS:]}"


def pull_error(text: str) -> str:
    """Returns why an image cannot be pulled, the same while the kubelet tries and while it waits."""
    text = re.sub(r'^Back-off pulling image "[^"]*": ', "", text)
    text = re.sub(r"^ErrImagePull: (?=.)", "", text)
    return steady(text)


def scheduler_words(text: str) -> str:
    """Returns why no node accepts a pod, without the numbers of nodes, which change with every node that comes or goes.

    What the scheduler says of its search for pods to evict is left out too.
    """
    text = text.partition(" preemption: ")[0].rstrip(", ")
    text = re.sub(r"\. (?:no new claims to deallocate|not found)$", "", text)
    text = re.sub(r"^\d+/\d+ nodes are available: ", "", text).rstrip(". ")
    parts = {_COUNTED.sub("", part.strip()) for part in re.split(r",(?![^{]*\})", text)}
    return steady(", ".join(sorted(part for part in parts if part)))


def refusal_words(text: str) -> str:
    """Returns why the API server refused a pod, without the pod's name and what others use of a quota."""
    text = re.sub(r'^(?:Error creating: )?pods "[^"]*" is forbidden: ', "", text)
    text = re.sub(r'\bPod "[^"]*" is invalid', "Pod is invalid", text)
    return steady(re.sub(r", used: .*?(?=, limited: )", "", text))
