"""Decides at which commits of target and drafter a revision is made, from what the spec names and what the hub answers.

A branch or tag is resolved once, when the revision is made, and the commit is stored with it: two replicas never load different weights,
and a branch that moves starts nothing. Where the hub gives no answer, a revision whose weights the operator's own pods fetch is not made;
any other one keeps the branch as written, and the engines resolve it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dflash_controller.api import defaults
from dflash_controller.api.inputs import canonical
from dflash_controller.api.types import Spec
from dflash_controller.engines.protocol import ModelRef
from dflash_controller.engines.resolve import fetch_image
from dflash_controller.engines.resolved import Resolved
from dflash_controller.model.hub import DEFAULT_BRANCH, HubAnswer, ModelFacts, ModelQuestion, is_commit, why
from dflash_controller.model.measurement import Absent
from dflash_controller.planning.revisions.revision import Revision

PartName = Literal["target", "drafter"]
PARTS: tuple[PartName, ...] = ("target", "drafter")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One of the two models of a revision that is to be made."""

    part: PartName
    question: ModelQuestion
    keeps: bool
    """The revision in force was made with this, and nobody asked to resolve it anew."""
    fallback: str | None = None
    """The commit to which the revision in force resolved the same; for a hub that gives no answer."""

    @property
    def field(self) -> str:
        """Returns the field that names the revision."""
        return f"spec.{self.part}.revision"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A branch or tag without a commit, and why."""

    choice: ModelChoice
    why: str

    def __str__(self) -> str:
        question = self.choice.question
        return f"{self.choice.field}: {question.ref} of {question.model} is not resolved to a commit, because {self.why}"


def fetched_by_operator(spec: Spec) -> bool:
    """Returns whether pods of the operator fetch the weights: into ``spec.storage``, unless it must hold them already."""
    return spec.storage is not None and defaults.weights_there(spec) is None and not _offline(spec)


def not_asked(spec: Spec, endpoint: str | None) -> Absent | None:
    """Returns why the operator's hub cannot speak for this deployment; None if it can. ``endpoint`` is the operator's."""
    if there := defaults.weights_there(spec):
        return Absent(there)
    if _offline(spec):
        return Absent("spec.engine.env keeps the engine offline")
    other = next((variable for variable in spec.engine.env if variable.name == "HF_ENDPOINT"), None)
    if other is not None and (other.value or "").rstrip("/") != (endpoint or "").rstrip("/"):
        return Absent("spec.engine.env sets HF_ENDPOINT, and the operator asks no hub that a DFlashDeployment names")
    return None


def _offline(spec: Spec) -> bool:
    return any(variable.name in _OFFLINE and (variable.value or "").lower() not in _FALSE for variable in spec.engine.env)


def choices(spec: Spec, drafter: str, stable: Revision | None, *, anew: bool) -> tuple[ModelChoice, ...]:
    """Returns target and drafter of the revision that the spec asks for, as they are to be looked up.

    ``anew`` is True if branches are to be resolved again: for a first revision, and when ``restartId`` changed. A change made for another
    reason keeps what the revision in force has, so that one edit changes one thing; a branch without a commit counts only where none is
    needed.
    """
    return tuple(_choice(spec, part, model, stable, anew) for part, model in zip(PARTS, (spec.target.model, drafter), strict=True))


def _choice(spec: Spec, part: PartName, model: str, stable: Revision | None, anew: bool) -> ModelChoice:
    written = getattr(spec, part).revision
    before: ModelRef | None = getattr(stable.resolved, part) if stable is not None else None
    if stable is None or before is None or before.model != model or written_revision(stable.inputs, part) != written:
        return ModelChoice(part, ModelQuestion(model, written or DEFAULT_BRANCH), keeps=False)
    if not anew and (before.pinned or not fetched_by_operator(spec)):
        return ModelChoice(part, ModelQuestion(model, before.revision or DEFAULT_BRANCH), keeps=True)
    fallback = before.revision if before.pinned else None
    return ModelChoice(part, ModelQuestion(model, written or DEFAULT_BRANCH), keeps=False, fallback=fallback)


def unresolved(choice: ModelChoice, answer: HubAnswer) -> Unresolved | None:
    """Returns why the choice has no commit of today; None if it has one, or is kept as it is."""
    if choice.keeps or choice.question.pinned or isinstance(answer, ModelFacts):
        return None
    return Unresolved(choice, why(answer))


def with_commits(
    spec: Spec, resolved: Resolved, found: Mapping[PartName, tuple[ModelChoice, HubAnswer]], stable: Revision | None
) -> Resolved:
    """Returns the values with the commits of target and drafter in place of branches and tags, as far as they are known.

    With commits the weights can be fetched into the storage that ``spec`` names.
    """
    refs = {part: _ref(getattr(resolved, part), *found[part], getattr(stable.resolved, part) if stable else None) for part in PARTS}
    target, drafter = refs["target"], refs["drafter"]
    return replace(resolved, target=target, drafter=drafter, fetch_image=fetch_image(spec, target, drafter, resolved.defaults))


def _ref(written: ModelRef, choice: ModelChoice, answer: HubAnswer, before: ModelRef | None) -> ModelRef:
    if choice.keeps and before is not None:
        return ModelRef(written.model, before.revision)
    if choice.question.pinned:
        return written
    if isinstance(answer, ModelFacts):
        return ModelRef(written.model, answer.commit)
    return ModelRef(written.model, choice.fallback) if choice.fallback else written


def intent_of(inputs: Mapping[str, Any]) -> str:
    """Returns a name for the change for which revisions are resolved: another one for each change of the inputs."""
    return hashlib.sha256(json.dumps(canonical(inputs), sort_keys=True).encode()).hexdigest()[:16]


def written_revision(inputs: Mapping[str, Any], part: PartName) -> str | None:
    """Returns the commit, tag or branch that the user wrote; None if there is none."""
    return (inputs.get(part) or {}).get("revision")


def branches(record: Revision) -> Iterator[tuple[PartName, ModelQuestion]]:
    """Yields the branches and tags that the revision was resolved from."""
    for part in PARTS:
        model: ModelRef = getattr(record.resolved, part)
        written = written_revision(record.inputs, part) or DEFAULT_BRANCH
        if model.pinned and not is_commit(written):
            yield part, ModelQuestion(model.model, written)
