"""What a model hub knows of a repository: the commit that a branch or tag names, its files, and its config.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.model.measurement import Absent, Error

DEFAULT_BRANCH = "main"
"""What a repository is read at if no revision is named."""
ENGINE_CACHE = "engine-cache"
"""Directory of the storage in which the engines of each namespace have one for what they compile. Earlier releases kept such files in
``cache``, which belongs to the user of some engine."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
"""In the order in which engines look for them: a repository may hold its weights twice."""


def is_commit(revision: str | None) -> bool:
    """Returns whether the revision is a full commit, which never moves."""
    return bool(revision and _COMMIT.fullmatch(revision))


def directory_of(model: str) -> str:
    """Returns the directory of fetched weights of a model, below which each commit has one."""
    return model.replace("/", "--")


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """A repository at a commit, tag or branch."""

    model: str
    ref: str

    @property
    def pinned(self) -> bool:
        """Returns whether the answer can never change."""
        return is_commit(self.ref)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the hub says of a repository at one revision."""

    commit: str
    files: Mapping[str, int] = field(default_factory=dict)
    """Size in bytes by path. Files whose size the hub does not tell are left out."""
    config: Mapping[str, Any] | None = None
    """What matters of config.json at that commit (``engines.drafter_config.relevant``); None if there is none, or it cannot be read."""

    @property
    def weight_bytes(self) -> int | None:
        """Returns the size of the weight files; None if there are none, or their sizes are not known.

        Files in folders are copies in other forms (``original/``), which engines do not load.
        """
        for ending in _WEIGHTS:
            if total := sum(size for path, size in self.files.items() if path.endswith(ending) and "/" not in path):
                return total
        return None


HubAnswer = ModelFacts | Absent | Error
"""Absent: the hub answers, and does not give what was asked for. Error: the hub does not answer. Both say why, in a sentence's words."""


def why(answer: Absent | Error) -> str:
    """Returns why there are no facts, as the end of a sentence."""
    return answer.reason if isinstance(answer, Absent) else answer.message


OFF = Absent("the operator asks no hub (the chart's huggingFace.endpoint, or DFLASH_HUGGING_FACE_ENDPOINT, is off)")


@dataclass(frozen=True, slots=True)
class HubKnowledge:
    """What the operator knows from the hub, as one deployment sees it.

    ``intent`` names the change for which revisions are to be resolved, and ``since`` the time from which answers count for it: a branch
    that somebody has just moved must not be resolved from memory. Times are those of one monotonic clock, in seconds.
    """

    endpoint: str | None = None
    """Base URL of the hub; None: no hub is asked."""
    shown: Mapping[ModelQuestion, HubAnswer] = field(default_factory=dict)
    """The last good answers; a failure only once it has lasted."""
    latest: Mapping[ModelQuestion, tuple[float, HubAnswer]] = field(default_factory=dict)
    """The last answers, each with the time at which the question was asked."""
    intent: str | None = None
    since: float = 0.0

    def watched(self, question: ModelQuestion) -> HubAnswer | None:
        """Returns what a branch names now, for the status; None if it is not known yet."""
        return OFF if self.endpoint is None else self.shown.get(question)

    def resolved(self, question: ModelQuestion, intent: str) -> HubAnswer | None:
        """Returns the answer with which a revision is made; None while the hub is being asked."""
        if self.endpoint is None:
            return OFF
        asked_at, answer = self.latest.get(question, (0.0, None))
        if answer is None or (not question.pinned and (self.intent != intent or asked_at < self.since)):
            return None
        return answer


@dataclass(frozen=True, slots=True)
class ModelQuestions:
    """What one deployment wants to know from the hub."""

    watched: tuple[ModelQuestion, ...] = ()
    """Branches whose moves are reported."""
    pending: tuple[ModelQuestion, ...] = ()
    """What has to be known before a revision is made."""
    intent: str | None = None
    """Names the change that ``pending`` is for."""


NO_QUESTIONS = ModelQuestions()
