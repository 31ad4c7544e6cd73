"""Builds the tuner's status: its last decision. It is rewritten only after a different decision has stood long enough."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dflash_controller.api import defaults
from dflash_controller.api.conditions import Reason, shorten, timestamp
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.tuner.decision import TunerDecision

_AT_ONCE = frozenset({"Off", "Frozen"})
"""States that follow from an action of a person, not from noisy measurements. They are shown at once."""
_HOUR = timedelta(hours=1)
_NUMBER = re.compile(r"[+-]?\d[\d.,]*")


def reported_decision(decision: TunerDecision) -> tuple[str, str, str]:
    """Returns what distinguishes one decision from the next: state, reason and recommendation, but no metrics."""
    return decision.state, decision.reason.value, decision.recommendation.label() if decision.recommendation else ""


def standing(decision: TunerDecision) -> tuple[str, ...]:
    """Returns what must stay the same until the status shows a decision: what distinguishes it, and its message without the numbers.

    One reason has several causes: too few samples for a decision may come from no traffic or from requests that wait.
    """
    return *reported_decision(decision), _without_numbers(shorten(decision.message))


def tuning_status(state: ReconcileState) -> Mapping[str, Any] | None:
    """Returns ``status.tuning``.

    Traffic is noisy, and near the border between two blocks the better one may change with every evaluation. A decision that follows from
    measurements and changes nothing is therefore shown only after it has stood for ``spec.tuning.window``. One reason to change nothing
    replaces another at most once an hour, and so does one cause of the same reason. Until then the shown decision stays, with its metrics.
    For the same reason, a deployment that has only begun to be measured is not shown as Held.
    """
    shown: Mapping[str, Any] | None = (state.deployment.get("status") or {}).get("tuning")
    decision = state.decision
    if decision is None:
        return shown
    words = standing(decision)
    if shown is not None and words == _words(shown) and (decision.state != "Held" or shown["message"] == shorten(decision.message)):
        return shown
    if not _worth_it(state, decision, words, shown):
        return shown
    allowed = decision.next_change_allowed_at_s
    return {
        "state": decision.state,
        "recommendation": words[2] or None,
        "reason": decision.reason.value,
        "message": shorten(decision.message),
        "inputs": dict(decision.numbers) or None,
        "decidedAt": timestamp(state.context.now),
        "nextChangeAllowedAt": timestamp(datetime.fromtimestamp(allowed, UTC)) if allowed is not None else None,
    }


def _words(shown: Mapping[str, Any]) -> tuple[str, ...]:
    words = str(shown.get("state", "")), str(shown.get("reason", "")), str(shown.get("recommendation") or "")
    return *words, _without_numbers(str(shown.get("message", "")))


def _without_numbers(message: str) -> str:
    return _NUMBER.sub("", message)


def _worth_it(state: ReconcileState, decision: TunerDecision, words: tuple[str, ...], shown: Mapping[str, Any] | None) -> bool:
    before = None if shown is None else shown.get("state")
    if decision.change_to is not None or decision.state in _AT_ONCE or before in _AT_ONCE:
        return True
    if shown is None and decision.state != "Held":
        return True
    knowledge, spec, stable = state.context.tuning, state.spec, state.stable
    if spec is None or stable is None or knowledge.reported != words or knowledge.reported_since is None:
        return False
    now, window_s = state.context.now, defaults.effective_tuning(spec, stable.resolved.trained_block_size).window_s
    if (now - knowledge.reported_since).total_seconds() < window_s:
        return False
    if shown is None or before == "Learning" or not (_as_it_is(words, stable) and _as_it_is(_words(shown), stable)):
        return True
    return timestamp(now - _HOUR) >= str(shown.get("decidedAt"))


def _as_it_is(words: tuple[str, ...], stable: Revision) -> bool:
    """Returns whether the decision changes nothing. Tuned with a recommendation other than the active speculation means a change is due."""
    _, reason, recommendation, _ = words
    return reason in (Reason.GAIN_TOO_SMALL, Reason.GAIN_UNKNOWN, Reason.LEARNING) or (
        reason == Reason.TUNED and recommendation in ("", stable.speculation.label())
    )


def ready(shown: Mapping[str, Any] | None) -> tuple[bool | None, Reason, str]:
    """Decides condition TuningReady from ``status.tuning``."""
    if shown is None:
        return (None, Reason.NOT_MEASURED, "The first measurement is still to come")
    return (shown["state"] in ("Advising", "Tuning"), Reason(shown["reason"]), str(shown["message"]))
