"""Counts the exits of a revision's engines from what is stored with it and the pods as they are now.

A container that exits is restarted in its pod. A LeaderWorkerSet replaces the whole group instead, and the new pods begin with no restarts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash_controller.api import names
from dflash_controller.model.snapshot import Pod
from dflash_controller.planning.replicas.count import engines
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.trial_state import Trial
from dflash_controller.planning.state.reconcile_state import ReconcileState

TERMINAL_RESTARTS = 5
"""Container restarts after which waiting does not help: about five minutes for an engine that exits at once, with kubelet's back-off."""
SEEN_KEPT = 16
"""UIDs kept of a revision's pods, the newest."""
GROUPS_COUNTED = 16
"""Groups whose starts are kept apart from each other's. Of more groups, so many starts are enough: an annotation has limits."""
_ENDED = ("Failed", "Succeeded")


def pods_of(state: ReconcileState, revision: Revision) -> list[Pod]:
    """Returns the pods of a revision, leaders and workers, with those that are terminating."""
    served_by = (names.ROLE_ENGINE, names.ROLE_WORKER)
    return [pod for pod in state.snapshot.pods if pod.revision == revision.hash and pod.role in served_by]


def crash_loop_after(groups: int) -> int:
    """Returns the exits after which so many groups, none of which serves, crash in a loop."""
    return TERMINAL_RESTARTS * min(groups, GROUPS_COUNTED)


def exits(trial: Trial, pods: Sequence[Pod]) -> int:
    """Returns how many times the candidate's engines have exited, without those that do not count.

    Once the leader of a group is gone, the exits of what is left of the group are part of that end.
    """
    alive = {pod.uid: pod.group for pod in engines(pods) if not pod.terminating and pod.phase not in _ENDED}
    restarts = sum(pod.restarts for pod in pods if not pod.terminating and pod.group in alive.values())
    gone = sum(uid not in alive for uid in trial.seen)
    return gone + max(0, restarts - (trial.restarts if alive.keys() & set(trial.seen[:1]) else 0))


def rebased(trial: Trial, pods: Sequence[Pod]) -> Trial:
    """Returns the trial with no exit so far counted."""
    alive = [pod for pod in pods if not pod.terminating and pod.phase not in _ENDED]
    leaders = tuple(pod.uid for pod in engines(alive) if pod.node is not None)
    return replace(trial, seen=leaders, failed=(), last_exit="", restarts=sum(pod.restarts for pod in alive))


def followed(trial: Trial, pods: Sequence[Pod], *, groups: int = 1) -> Trial:
    """Returns the trial with new pods in ``seen``, and without those that were evicted, drained or deleted although they had not failed.

    Of each group, the pods of as many starts are kept as make a crash loop, and the one that runs.

    A LeaderWorkerSet deletes the leader after a pod of its group has exited, and that pod soon after. So an exit is remembered when it is
    seen.
    """
    known, leaders = set(trial.seen), engines(pods)
    ended = {pod.uid for pod in leaders if pod.terminating or pod.phase in _ENDED}
    counted = dict.fromkeys(trial.seen[:1], trial.restarts)
    exited = {pod.uid for pod in leaders if pod.uid in known and _restarts(pod, pods) > counted.get(pod.uid, 0)}
    failed = tuple(uid for uid in trial.seen if uid in exited | set(trial.failed))
    unharmed = ended & known - set(failed)
    if unharmed:
        trial = replace(trial, seen=tuple(uid for uid in trial.seen if uid not in unharmed), restarts=0)
    new = tuple(pod.uid for pod in leaders if pod.uid not in known | ended and pod.node is not None)
    kept = max(SEEN_KEPT, crash_loop_after(groups) + groups)
    return replace(trial, seen=(*trial.seen, *new)[-kept:], failed=failed)


def _restarts(leader: Pod, pods: Sequence[Pod]) -> int:
    """Returns the restarts in the leader's group; those of the pod itself if it has none."""
    return sum(pod.restarts for pod in pods if pod.uid == leader.uid or (leader.group is not None and pod.group == leader.group))
