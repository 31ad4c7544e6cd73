"""Stores which groups of an active revision have started, so that a group that crashes in a loop is told from one that loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import replace

from dflash_controller.api import names
from dflash_controller.model.snapshot import Pod
from dflash_controller.planning.state.child_ownership import ref
from dflash_controller.planning.state.engine_exits import followed, pods_of
from dflash_controller.planning.state.plan import Annotate
from dflash_controller.planning.state.reconcile_state import ReconcileState


def note_starts(state: ReconcileState) -> tuple[ReconcileState, list[Annotate]]:
    """Returns the state with the starts of the active revision, or of the first one, and the write that stores them.

    A group has started once all its pods have a node: a leader that waits in vain for workers without room exits too. Nothing is written
    while all replicas serve, except once to forget the starts of before. Pods of one node count their restarts.
    """
    record = state.stable or state.candidate
    if record is None or record.resolved.nodes == 1:
        return state, []
    pool, pods = state.pool(record.hash), pods_of(state, record)
    if pool.serving >= pool.wanted:
        trial = replace(record.trial, seen=(), failed=(), restarts=0)
    else:
        placed = Counter(pod.group for pod in pods if pod.node is not None)
        started = {group for group, count in placed.items() if count >= record.resolved.nodes}
        known = record.trial.seen
        counted = [pod for pod in pods if pod.uid in known or (not pod.ready and _counts(pod, started))]
        trial = followed(record.trial, counted, groups=pool.wanted)
    if trial == record.trial:
        return state, []
    noted = replace(record, trial=trial)
    records = tuple(noted if item == record else item for item in state.records)
    state = replace(state, stable=noted) if state.stable else replace(state, candidate=noted)
    return replace(state, records=records), [Annotate(ref(record.source), {names.ANNOTATION_TRIAL: trial.to_json()})]


def _counts(pod: Pod, started: Set[str | None]) -> bool:
    """Returns whether a pod that does not serve tells of starts: a leader whose group has started, or a worker, by its restarts."""
    return pod.role == names.ROLE_WORKER or pod.group in started
