"""Reports branches that have moved since a revision was resolved from them, and says what is asked of the hub to know it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dflash_controller.api.conditions import Reason
from dflash_controller.model.hub import ModelFacts, ModelQuestion, ModelQuestions, why
from dflash_controller.planning.revisions.model_commits import PartName, branches
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.reconcile_state import ReconcileState

_NEWER: dict[PartName, Reason] = {"target": Reason.NEWER_TARGET_AVAILABLE, "drafter": Reason.NEWER_DRAFTER_AVAILABLE}


def hub_questions(state: ReconcileState) -> ModelQuestions:
    """Returns what to ask of the hub: for the revision that is to be made, and about the branches of the one that runs."""
    target = state.target
    return replace(state.asked_hub, watched=tuple(question for _, question in branches(target)) if target else ())


def moved_branches(state: ReconcileState) -> Iterator[tuple[Reason, str]]:
    """Yields a notice for each branch or tag that names another commit now, and one if the hub does not say what it names."""
    target, silent = state.target, None
    for part, question in branches(target) if target else ():
        answer, commit = state.context.hub.watched(question), _commit(target, part)
        if isinstance(answer, ModelFacts):
            tried = state.failed is not None and _commit(state.failed, part) == answer.commit
            if answer.commit != commit and not tried:
                yield _NEWER[part], _newer(part, question, commit, answer.commit)
            continue
        if state.context.hub.endpoint is None:
            continue
        if (shown := _shown(state, _NEWER[part], commit)) is not None:
            # Nothing is known yet after a start, or no more: what was true stays said.
            yield _NEWER[part], shown
        if answer is not None and silent is None:
            silent = _silent(part, question, commit, why(answer))
    if silent is None and target is not None:
        unknown = [part for part, question in branches(target) if state.context.hub.watched(question) is None]
        silent = _shown(state, Reason.HUB_UNAVAILABLE, *(_commit(target, part) for part in unknown)) if unknown else None
    if silent is not None and state.context.hub.endpoint is not None:
        yield Reason.HUB_UNAVAILABLE, silent


def _newer(part: PartName, question: ModelQuestion, commit: str, now: str) -> str:
    return (
        f"{question.ref} of {question.model} is {now} now, and {commit} runs. Nothing changes by itself: change spec.restartId to adopt "
        f"it, or set spec.{part}.revision to the commit you want"
    )


def _silent(part: PartName, question: ModelQuestion, commit: str, reason: str) -> str:
    return (
        f"Whether {question.ref} of {question.model} has moved is not known, because {reason}. {commit} runs and is not touched. Set "
        f"spec.{part}.revision to a commit, and the hub is not asked"
    )


def _shown(state: ReconcileState, reason: Reason, *commits: str) -> str | None:
    """Returns the message that the status has under the reason, if it is about one of these commits."""
    for notice in (state.deployment.get("status") or {}).get("notices") or ():
        if notice.get("reason") == reason and any(f"{commit} runs" in notice.get("message", "") for commit in commits):
            return str(notice["message"])
    return None


def _commit(record: Revision | None, part: PartName) -> str:
    return "" if record is None else str(getattr(record.resolved, part).revision)
