"""Builds the workloads of all revisions with the replicas decided, and removes what is no longer used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dflash_controller.api import names
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.children.shared import account, child
from dflash_controller.planning.replicas.count import revision_of
from dflash_controller.planning.revisions.revision import (
    Origin,
    Revision,
    RevisionState,
    live_workload,
    state_annotations,
    workload_annotation,
)
from dflash_controller.planning.state.child_ownership import being_deleted, ref
from dflash_controller.planning.state.plan import Annotate, Apply, Delete, Step
from dflash_controller.planning.state.prefetch_progress import next_attempt
from dflash_controller.planning.state.reconcile_state import ReconcileState


def serving_steps(state: ReconcileState) -> list[Apply]:
    """Returns the applies that keep serving: the ServiceAccount, then every workload except that of a candidate on trial."""
    tried = _tried(state)
    return [*account(state), *(step for step in _workload_steps(state) if step.manifest["metadata"]["name"] != tried)]


def candidate_steps(state: ReconcileState) -> list[Apply]:
    """Returns the apply of the candidate's workload."""
    tried = _tried(state)
    return [step for step in _workload_steps(state) if step.manifest["metadata"]["name"] == tried]


def _tried(state: ReconcileState) -> str | None:
    """Returns the name of a candidate whose workload belongs to the rollout. The very first one, once stored, is what serves."""
    candidate = state.candidate
    if candidate is None or (state.stable is None and "uid" in candidate.source["metadata"]):
        return None
    return candidate.name


def _workload_steps(state: ReconcileState) -> list[Apply]:
    """Returns one apply per workload that exists or is needed. Scale-downs come first. An apply to a live workload is fenced.

    A revision with pods has a workload, but the workload may have lost the label the operator selects by. The apply then reaches it by its
    name.
    """
    live = {revision_of(item): item for item in state.snapshot.workloads if not being_deleted(item)}
    records = {record.hash: record for record in state.records}
    roles = {record.hash for record in (state.stable, state.candidate) if record}
    unseen = {pool.revision for pool in state.pools if pool.existing and pool.revision in records} - live.keys()
    steps: list[Apply] = []
    for revision in sorted({*live, *roles, *unseen}):
        item, record, replicas = live.get(revision), records.get(revision), state.wanted.get(revision, 0)
        if item is not None and revision not in roles and _deserted(state, revision):
            continue
        needed = replicas or record == state.stable or revision in unseen | state.empty_first
        if item is None and (record is None or not needed):
            continue
        manifest = _with_record(record, state.snapshot.key.namespace) if record else live_workload(item or {})
        if (manifest["kind"], manifest["metadata"]["name"]) in state.taken:
            continue
        now = int(item["spec"].get("replicas", 1)) if item else state.pool(revision).wanted
        apply = child(state.deployment, {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}, item)
        steps.append(replace(apply, fenced=item is not None, irreversible=replicas < now))
    return sorted(steps, key=lambda step: not step.irreversible)


def clean_up(state: ReconcileState, history_limit: int) -> list[Step]:
    """Returns the steps that delete empty workloads of inactive revisions, retire old revisions, and prune the history."""
    roles = {record.hash for record in (state.stable, state.candidate, state.failed, state.pin) if record}
    in_force = {record.hash for record in (state.stable, state.candidate) if record}
    steps: list[Step] = [
        Delete(ref(item))
        for item in state.snapshot.workloads
        if (revision := revision_of(item)) not in in_force | state.unknown and _deserted(state, revision) and not being_deleted(item)
    ]
    running = {revision_of(item) for item in state.snapshot.workloads} | {pool.revision for pool in state.pools if pool.existing}
    idle = [record for record in state.records if record.hash not in roles | running and "uid" in record.source["metadata"]]
    replaced_for = Origin((state.stable.origin if state.stable else None) or Origin.USER)
    for record in idle:
        if record.state is RevisionState.STABLE:
            changes = state_annotations(record, RevisionState.RETIRED, state.context.now, replaced_for, "Replaced")
            steps.append(Annotate(ref(record.source), changes))
    kept = sorted((record for record in idle if record.state is not RevisionState.STABLE), key=lambda record: record.number, reverse=True)
    return [*steps, *(Delete(ref(record.source)) for record in kept[history_limit:] if not being_deleted(record.source))]


def spent_jobs(state: ReconcileState) -> list[Delete]:
    """Returns the deletions of prefetch Jobs whose candidate has its replica or is no longer it, and of failed ones that are due again."""
    candidate = state.candidate
    wanted = candidate.hash if candidate is not None and not state.pool(candidate.hash).wanted else None
    jobs = [item for item in state.snapshot.others if item["kind"] == "Job" and not being_deleted(item)]
    due = [job for job in jobs if (at := next_attempt(job, candidate)) and at <= state.context.now]
    spent = [job for job in jobs if (job["metadata"].get("labels") or {}).get(names.LABEL_REVISION) != wanted]
    return [Delete(ref(job)) for job in jobs if job in due or job in spent]


def _deserted(state: ReconcileState, revision: str) -> bool:
    pool = state.pool(revision)
    return pool.wanted == 0 and pool.existing == 0 and pool.terminating == 0 and pool.settled


def _with_record(record: Revision, namespace: str) -> Mapping[str, Any]:
    """Returns the workload of a revision. Its place is that of the record: a backup may have been restored into another namespace."""
    metadata: Object = {**record.workload["metadata"], "name": record.name, "namespace": namespace}
    annotations = {
        **(metadata.get("annotations") or {}),
        names.ANNOTATION_RECORD: workload_annotation(record.source["data"]),
        names.ANNOTATION_NUMBER: str(record.number),
        names.ANNOTATION_STATE: record.state.value,
    }
    return {**record.workload, "metadata": {**metadata, "annotations": annotations}}
