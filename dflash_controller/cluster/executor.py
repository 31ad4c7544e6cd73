"""Carries out a plan write by write, and drops it as soon as the cluster differs from what the plan was made for.

A write that the API server refuses does not drop the plan. It stops the rest of a rollout, but neither scaling and repair nor accessories.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from dflash_controller.api.conditions import Reason
from dflash_controller.cluster.apply import ApplyDecision, ApplyMemory, digest
from dflash_controller.cluster.client import Client, Obj
from dflash_controller.cluster.errors import AlreadyExists, ApiError, Conflict, LostLeadership, NotFound, PlanConflict
from dflash_controller.cluster.events import EventRecorder
from dflash_controller.cluster.field_ownership import Path, other_managers, readable
from dflash_controller.cluster.kinds import DFLASH_DEPLOYMENT, Kind, find_kind, kind_of
from dflash_controller.cluster.store import Identity, Store
from dflash_controller.model.snapshot import Key, Object, Snapshot
from dflash_controller.planning.state.child_ownership import foreign
from dflash_controller.planning.state.plan import Adopt, Annotate, Apply, Create, Delete, Event, Part, Plan, Ref, Step
from dflash_controller.render.compact import compact

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of a plan."""

    writes: int = 0
    """Writes to children and to the status; events are not counted."""
    skipped: int = 0
    """Applies not sent because they would change nothing."""
    status_written: bool = False
    events: int = 0
    retry_after_s: float | None = None
    """Seconds until a write that another manager keeps undoing may be tried again; None if there is none."""
    conflicts: Mapping[Identity, str] = field(default_factory=dict)
    """What to tell of objects that another field manager keeps changing, where it is new or has changed."""
    uncontested: frozenset[Identity] = frozenset()
    """Objects that no other field manager keeps changing."""
    refused: Mapping[Part, ApiError] = field(default_factory=dict)
    """The first write that the API server refused, by part."""


@dataclass(slots=True)
class _Run:
    """One execution in progress."""

    key: Key
    snapshot: Snapshot
    moved: dict[tuple[str, str], str]
    """Maps (uid, version the plan knew) to the version after the plan's own fenced write."""
    result: ExecutionResult


class Executor:
    """Carries out plans. It calls ``still_leader`` before each write, so that a process that was paused never continues an old plan."""

    def __init__(
        self, client: Client, store: Store, events: EventRecorder, *, still_leader: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._store = store
        self._events = events
        self._still_leader = still_leader
        self._memory = ApplyMemory(clock)
        self._futile_status: dict[Key, str] = {}

    async def execute(self, plan: Plan, snapshot: Snapshot) -> ExecutionResult:
        """Carries out the steps in order, then writes the status.

        If a write is refused, what does not depend on it goes on. The status is then not written, because it was made for a plan that was
        carried out. Raises PlanConflict if a precondition fails (the store is up to date then: plan again), LostLeadership before a write
        that is no longer allowed, ApiError if the API server does not answer or refuses the status, and ValueError if a plan with an
        irreversible step was made from a snapshot not read live.
        """
        if plan.irreversible and not snapshot.live:
            raise ValueError("a plan with an irreversible step needs a snapshot read live")
        run = _Run(snapshot.key, snapshot, {}, ExecutionResult())
        for part, steps in plan.parts:
            await self._carry_out_part(part, steps, run)
        if plan.status is not None and not run.result.refused:
            await self._write_status(plan.status, run)
        return run.result

    async def _carry_out_part(self, part: Part, steps: tuple[Step, ...], run: _Run) -> None:
        for step in steps:
            try:
                await self._carry_out(step, run)
            except ApiError as error:
                if error.code == 0:
                    raise
                log.warning("%s: a write for %s was refused: %s", run.key, part.value, error)
                run.result = replace(run.result, refused={**run.result.refused, part: run.result.refused.get(part, error)})
                if part is Part.ROLLOUT:
                    return

    def prune(self) -> None:
        """Forgets objects that are gone."""
        self._memory.prune(lambda identity: self._store.version(identity) is not None)
        alive = self._store.keys()
        self._futile_status = {key: shown for key, shown in self._futile_status.items() if key in alive}

    async def _carry_out(self, step: Step, run: _Run) -> None:
        _require_namespace(step, run.key)
        match step:
            case Adopt(ref, owner_references, labels):
                await self._patch(ref, {"metadata": {"ownerReferences": list(owner_references), "labels": dict(labels)}}, run)
            case Annotate(ref, annotations, revision):
                numbered = {} if revision is None else {"revision": revision}
                await self._patch(ref, {"metadata": {"annotations": dict(annotations)}} | numbered, run)
            case Create(manifest):
                await self._create(manifest, run)
            case Apply():
                await self._apply(step, run)
            case Delete(ref):
                await self._delete(ref, run)
            case Event():
                await self._record_event(step, run)
            case _:
                assert_never(step)

    async def _patch(self, ref: Ref, patch: dict[str, Any], run: _Run) -> None:
        kind = find_kind(ref.api_version, ref.kind)
        self._require_child((kind, ref.namespace, ref.name), run)
        version = self._fence(ref, run)
        patch["metadata"]["resourceVersion"] = version
        after = await self._write(kind, ref.namespace, ref.name, run, self._client.merge_patch, kind, ref.namespace, ref.name, patch)
        self._moved(ref, after, run)

    async def _create(self, manifest: Mapping[str, Any], run: _Run) -> None:
        kind, metadata = kind_of(manifest), manifest["metadata"]
        await self._write(kind, metadata["namespace"], metadata["name"], run, self._client.create, kind, manifest)

    async def _apply(self, step: Apply, run: _Run) -> None:
        kind, metadata = kind_of(step.manifest), step.manifest["metadata"]
        identity: Identity = (kind, metadata["namespace"], metadata["name"])
        if step.fence is None:
            await self._require_free(identity, run)
        else:
            self._require_child(identity, run)
        live = self._live(identity, run) if step.fence else None
        decision = self._memory.decide(identity, step.manifest, live)
        if not decision.contested:
            run.result = replace(run.result, uncontested=run.result.uncontested | {identity})
        if decision.retry_after_s is not None:
            held = run.result.retry_after_s
            run.result = replace(
                run.result, retry_after_s=min(decision.retry_after_s, held) if held is not None else decision.retry_after_s
            )
        if not decision.send:
            run.result = replace(run.result, skipped=run.result.skipped + 1)
            return
        managers = await self._conflicting_managers(identity, decision)
        body = self._fenced_manifest(step, run)
        # Without force, an apply meant to create does not overwrite an object that appeared under the name in the meantime.
        after = await self._write(kind, identity[1], identity[2], run, self._client.apply, kind, body, force=step.fence is not None)
        self._memory.applied(identity, step.manifest, live, after)
        if step.fence and step.fenced:
            self._moved(step.fence, after, run)
        if decision.conflict:
            event = _conflict_event(identity, decision.conflict, managers)
            run.result = replace(run.result, conflicts={**run.result.conflicts, identity: event.message})
            await self._record_event(event, run)

    def _fenced_manifest(self, step: Apply, run: _Run) -> Obj:
        if step.fence is None:
            return dict(step.manifest)
        # With the UID, an object deleted in the meantime gives a conflict; a plain apply would create it anew.
        fence = {"uid": step.fence.uid} | ({"resourceVersion": self._fence(step.fence, run)} if step.fenced else {})
        return {**step.manifest, "metadata": {**step.manifest["metadata"], **fence}}

    def _require_child(self, identity: Identity, run: _Run) -> None:
        """Raises PlanConflict if the object, as known now, is not one of this deployment's children and no orphan of it."""
        known, deployment = self._live(identity, run), run.snapshot.deployment
        if known is not None and deployment is not None and foreign((known,), deployment):
            raise PlanConflict(f"{identity[0].name} {identity[1]}/{identity[2]} is not the operator's")

    async def _require_free(self, identity: Identity, run: _Run) -> None:
        """Raises PlanConflict if the name is taken. The plan saw only labelled children; another object may still have the name."""
        try:
            holder = await self._client.get(*identity)
        except NotFound:
            return
        self._take_in(identity, holder, run)
        raise PlanConflict(f"{identity[0].name} {identity[1]}/{identity[2]} exists")

    async def _delete(self, ref: Ref, run: _Run) -> None:
        kind = find_kind(ref.api_version, ref.kind)
        self._require_child((kind, ref.namespace, ref.name), run)
        version = self._fence(ref, run)
        try:
            answer = await self._guarded(self._client.delete, kind, ref.namespace, ref.name, uid=ref.uid, resource_version=version)
        except NotFound:
            self._store.forget((kind, ref.namespace, ref.name), int(version))
            return
        except Conflict as error:
            raise await self._conflict((kind, ref.namespace, ref.name), error, run) from error
        if answer.get("kind") == kind.name and answer["metadata"].get("finalizers"):
            self._store.put(kind, answer)
        else:
            self._store.forget((kind, ref.namespace, ref.name), int(version))
        self._wrote("delete", kind, ref.name, run)

    async def _write_status(self, status: Mapping[str, Any], run: _Run) -> None:
        deployment = run.snapshot.deployment
        if deployment is None or _same(status, deployment.get("status") or {}):
            return
        metadata = deployment["metadata"]
        shown = digest([status, deployment.get("status")])
        if self._futile_status.get(run.key) == shown:
            return
        body = {
            "apiVersion": DFLASH_DEPLOYMENT.api_version,
            "kind": DFLASH_DEPLOYMENT.name,
            "metadata": {field: metadata[field] for field in ("namespace", "name", "uid", "resourceVersion")},
            "status": compact(status),
        }
        namespace, name = run.key.namespace, run.key.name
        after = await self._write(
            DFLASH_DEPLOYMENT, namespace, name, run, self._client.apply, DFLASH_DEPLOYMENT, body, subresource="status"
        )
        if after["metadata"]["resourceVersion"] == metadata["resourceVersion"]:
            self._futile_status[run.key] = shown
        else:
            self._futile_status.pop(run.key, None)
        run.result = replace(run.result, status_written=True)

    async def _record_event(self, event: Event, run: _Run) -> None:
        if run.snapshot.deployment is None:
            return
        self._require_leadership()
        if await self._events.record(event, run.snapshot.deployment):
            run.result = replace(run.result, events=run.result.events + 1)

    async def _conflicting_managers(self, identity: Identity, decision: ApplyDecision) -> tuple[str, ...]:
        """Returns the managers that own the fields now. It reads the object, because the store keeps only the operator's managedFields."""
        if not decision.conflict:
            return ()
        try:
            return other_managers(await self._client.get(*identity), decision.conflict)
        except NotFound:
            return ()

    async def _write(
        self, kind: Kind, namespace: str, name: str, run: _Run, call: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Obj:
        try:
            after: Obj = await self._guarded(call, *arguments, **options)
        except (Conflict, NotFound) as error:
            raise await self._conflict((kind, namespace, name), error, run) from error
        self._take_in((kind, namespace, name), after, run)
        self._wrote(str(options.get("subresource") or call.__name__), kind, name, run)
        return after

    def _wrote(self, what: str, kind: Kind, name: str, run: _Run) -> None:
        """Logs and counts a write, so that people can see what was done to a deployment."""
        log.info("%s: %s %s %s", run.key, what, kind.name, name, extra={"deployment": str(run.key)})
        run.result = replace(run.result, writes=run.result.writes + 1)

    async def _guarded(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self._require_leadership()
        return await call(*arguments, **options)

    def _require_leadership(self) -> None:
        if not self._still_leader():
            raise LostLeadership("the Lease was not renewed in time")

    async def _conflict(self, identity: Identity, error: Conflict | NotFound, run: _Run) -> PlanConflict:
        """Updates the store, so that the next plan starts from the current object even if the watch lags."""
        log.info("plan for %s dropped: %s %s/%s: %s", run.key, identity[0].name, identity[1], identity[2], error)
        if isinstance(error, AlreadyExists) or not isinstance(error, NotFound):
            try:
                self._take_in(identity, await self._client.get(*identity), run)
            except NotFound:
                error = NotFound(404, "NotFound", f"{identity[0].name} {identity[2]} is gone")
        if isinstance(error, NotFound):
            known = self._store.version(identity)
            if known is not None:
                self._store.forget(identity, known)
        return PlanConflict(str(error))

    def _take_in(self, identity: Identity, obj: Object, run: _Run) -> None:
        self._store.put(identity[0], obj)
        if self._store.belongs(identity) == run.key:
            self._store.unclaim(run.key, identity)
        else:
            self._store.claim(run.key, identity[0], obj)

    def _live(self, identity: Identity, run: _Run) -> Object | None:
        """Returns the object as last seen: a labelled child, or an object without our label that the plan has just claimed."""
        return self._store.get(identity) or self._store.claimed(run.key, identity)

    def _fence(self, ref: Ref, run: _Run) -> str:
        """Returns the version to require: the plan's, or the one after the plan's own write to the same object."""
        return run.moved.get((ref.uid, ref.resource_version), ref.resource_version)

    def _moved(self, ref: Ref, after: Obj, run: _Run) -> None:
        run.moved[ref.uid, ref.resource_version] = after["metadata"]["resourceVersion"]


def _require_namespace(step: Step, key: Key) -> None:
    """Raises ValueError for a write outside the deployment's namespace. A record may have been copied from another one."""
    match step:
        case Create(manifest) | Apply(manifest=manifest):
            namespace = manifest["metadata"].get("namespace")
        case Adopt(ref) | Annotate(ref) | Delete(ref):
            namespace = ref.namespace
        case _:
            return
    if namespace != key.namespace:
        raise ValueError(f"{key}: a write into namespace {namespace}")


def _same(rendered: Any, live: Any) -> bool:
    """Returns whether two statuses are equal; None and empty parts equal absent ones."""
    return bool(compact(rendered) == compact(live))


def _conflict_event(identity: Identity, fields: tuple[Path, ...], managers: tuple[str, ...]) -> Event:
    kind, _, name = identity
    who = f"field manager {managers[0]}" if managers else "another writer"
    what = ", ".join(readable(path) for path in fields[:3])
    return Event(
        type="Warning",
        reason=Reason.FIELD_FIGHT.value,
        message=f"{kind.name} {name}: {who} keeps changing {what}. The operator resets it with growing delays. "
        f"Configure that writer to leave the field alone",
    )
