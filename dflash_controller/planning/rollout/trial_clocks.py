"""Keeps the clocks of a trial, from what is stored with it and the pods as they are now.

Kubernetes has no such clock for a LeaderWorkerSet, and the one of a Deployment runs while pods wait for room. A value changes only at a
transition, because every change is a write.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from math import inf

from dflash_controller.api import names
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.trial_state import Trial
from dflash_controller.planning.state.engine_exits import followed, pods_of, rebased
from dflash_controller.planning.state.fetches import arrives, arriving
from dflash_controller.planning.state.pod_trouble_cases import Kind
from dflash_controller.planning.state.pod_troubles import CANNOT_START_S, Trouble, failing
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.render.startup import progress_deadline_s

STABLE_FAILING_S = 180.0
"""Seconds in which every stable pod fails, after which stable counts as not serving."""


def ticked(state: ReconcileState, candidate: Revision, trial: Trial, found: Trouble | None) -> Trial:
    """Returns the trial with its clocks set for now. ``found`` is the candidate's trouble; None if it has none or serves."""
    now, pods = state.context.now.replace(microsecond=0), pods_of(state, candidate)
    before, trial = trial.failed, followed(trial, pods)
    if found is not None and set(trial.failed) - set(before):
        trial = replace(trial, last_exit=found.message)
    if _stable_is_down(state):
        trial = replace(trial, stable_down_since=_since(trial.stable_down_since, now))
    elif not _stable_has_stopped(state):
        trial = replace(trial, stable_down_since=None)
    if trial.served_at is not None:
        return trial
    if arriving(state, candidate.hash):
        # The start-up budget begins when the weights are there. Pods of a group may have exited while they waited for one another.
        restarts = sum(pod.restarts for pod in pods if not (pod.terminating or pod.fetching))
        return replace(rebased(trial, pods), restarts=restarts, cannot_start_since=None, loading_since=None)
    kind = found.kind if found else None
    cannot_start = _since(trial.cannot_start_since, now) if kind is Kind.CANNOT_START else None
    loading = trial.loading_since
    if kind is Kind.NO_ROOM:
        loading = None
    elif any(pod.node is not None and not pod.terminating for pod in pods):
        if loading is None and trial.seen:
            # The engine may have waited in vain for pods of its group that had no room. Those exits do not count.
            trial = rebased(trial, pods)
        loading = _since(loading, now)
    return replace(trial, cannot_start_since=cannot_start, loading_since=loading)


def served(state: ReconcileState, candidate: Revision, trial: Trial) -> Trial:
    """Returns the trial of a candidate that serves for the first time now. What happened during start-up does not count against it."""
    trial = rebased(trial, pods_of(state, candidate))
    return replace(trial, served_at=state.context.now.replace(microsecond=0), cannot_start_since=None, loading_since=None)


def begun(trial: Trial) -> Trial:
    """Returns the trial as it begins."""
    return replace(
        trial,
        served_at=None,
        restarts=0,
        seen=(),
        failed=(),
        last_exit="",
        cannot_start_since=None,
        loading_since=None,
        stable_down_since=None,
        interrupted=False,
        interrupted_at_one=False,
    )


def cannot_start_left_s(state: ReconcileState, trial: Trial) -> float | None:
    """Returns the seconds until a candidate that cannot start is given up; None if it can start."""
    return _left_s(state, trial.cannot_start_since, CANNOT_START_S)


def loading_left_s(state: ReconcileState, candidate: Revision, trial: Trial) -> float | None:
    """Returns the seconds left of the start-up budget; None while the candidate has no room."""
    return _left_s(state, trial.loading_since, progress_deadline_s(candidate.resolved))


def stable_down_left_s(state: ReconcileState, stable: Revision, trial: Trial) -> float | None:
    """Returns the seconds until stable counts as not serving; None while it serves.

    Pods that are merely not Ready may load, so they get the start-up budget.
    """
    pods = state.pods(stable.hash)
    workers_fail = any(failing(pod) for pod in pods_of(state, stable) if pod.role == names.ROLE_WORKER and not pod.terminating)
    fails = bool(pods) and all((failing(pod) and not arrives(state, pod)) or workers_fail for pod in pods)
    return _left_s(state, trial.stable_down_since, STABLE_FAILING_S if fails else progress_deadline_s(stable.resolved))


def unready_s(state: ReconcileState, record: Revision) -> float:
    """Returns the seconds for which none of the revision's pods has been Ready, as the kubelets tell; infinite if they do not."""
    since = [pod.unready_since for pod in state.pods(record.hash) if pod.unready_since is not None]
    return (state.context.now - max(since)).total_seconds() if since else inf


def _stable_is_down(state: ReconcileState) -> bool:
    """Returns whether stable should serve beside the candidate and does not."""
    pool = state.pool(state.stable.hash) if state.stable else None
    return pool is not None and pool.wanted > 0 and pool.serving == 0


def _stable_has_stopped(state: ReconcileState) -> bool:
    """Returns whether stable stopped for the candidate. What was known of it when the trial began stays known."""
    pool = state.pool(state.stable.hash) if state.stable else None
    return pool is not None and pool.wanted == 0


def _since(since: datetime | None, now: datetime) -> datetime:
    """Returns the start of a clock: the stored one, or now. One in the future was written by a clock that was wrong."""
    return since if since is not None and since <= now else now


def _left_s(state: ReconcileState, since: datetime | None, limit_s: float) -> float | None:
    return None if since is None else limit_s - (state.context.now - since).total_seconds()
