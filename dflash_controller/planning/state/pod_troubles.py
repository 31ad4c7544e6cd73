"""Finds what keeps engine pods from serving: the trouble of a pod, of a group, or of a workload that cannot create pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason
from dflash_controller.model.snapshot import Object, Pod
from dflash_controller.planning.replicas.count import LEADER_WORKER_SET, revision_of, template_of
from dflash_controller.planning.state import pod_trouble_cases as cases
from dflash_controller.planning.state import steady_text
from dflash_controller.planning.state.engine_exits import TERMINAL_RESTARTS, crash_loop_after, exits, pods_of
from dflash_controller.planning.state.fetches import arrives
from dflash_controller.planning.state.pod_trouble_cases import Case, Kind
from dflash_controller.planning.state.prefetch_progress import reason_of
from dflash_controller.planning.state.reconcile_state import ReconcileState

CANNOT_START_S = 180.0
"""Seconds that a container could not be created or started, after which waiting does not help."""
SET_UP_S = 120.0
"""Seconds in which the kubelet sets up a pod's volumes and network. Attaching a disk takes a part of them."""
ENDED_S = 300.0
"""Seconds from its creation in which a pod that a node refused speaks for its successor."""
WORKERS_S = 60.0
"""Seconds in which the leaders of a new workload, and after its leader the workers of a group, are created."""
_NO_SUCH_NODE = "didn't match Pod's node affinity/selector"
"""The scheduler's words."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why pods do not serve.

    The message contains no number that changes while the trouble lasts, because every change is a write.
    """

    kind: Kind
    reason: Reason
    message: str
    since: datetime | None = None
    """Since when there is no room, as Kubernetes tells it."""
    terminal: bool = False
    """True if waiting does not fix it."""


def pod_failure(state: ReconcileState, revision: str | None = None) -> Trouble | None:
    """Returns the main trouble of a revision, or of all revisions. Refused pods come first, then what is most certain to last.

    In a group an engine exits if another pod of it is missing, so there the lack of room is the cause and comes before exits.
    """
    if refused := refusal(state, revision):
        return refused
    pods = _pods(state, revision)
    grouped = any(pod.role == names.ROLE_WORKER for pod in pods)
    found = [(_rank(trouble, pod, grouped=grouped), trouble) for pod in pods if (trouble := _of_pod(state, pod))]
    missing = _missing(state, revision)
    first = min(found, default=None, key=lambda item: item[0])
    if first is None or first[1].reason is Reason.ENGINE_FAILING:
        if missing:
            return missing
        if loops := _crash_loop(state, revision):
            return loops
    return first[1] if first else None


def refusal(state: ReconcileState, revision: str | None = None) -> Trouble | None:
    """Returns what keeps the workload of a revision from creating pods, as its ReplicaSet tells it."""
    for workload in state.snapshot.workloads:
        condition = _condition(workload, "ReplicaFailure", "True") if revision in (None, revision_of(workload)) else None
        if condition is not None:
            text = str(condition.get("message") or condition.get("reason"))
            case = next(case for pattern, case in cases.REFUSALS if pattern.search(text))
            changed = condition.get("lastTransitionTime")
            since = datetime.fromisoformat(changed) if changed else state.context.now
            return _trouble(case, steady_text.refusal_words(text), workload, since)
    return None


def no_room_since(state: ReconcileState, revision: str) -> datetime | None:
    """Returns since when a pod of the revision, or one that it cannot create, has had no room; None if all have it."""
    refused, missing = refusal(state, revision), _missing(state, revision)
    since = [found.since for found in (refused, missing) if found and found.kind is Kind.NO_ROOM]
    since += [pod.unschedulable_since for pod in _pods(state, revision)]
    return min((time for time in since if time is not None), default=None)


def deadline_exceeded(state: ReconcileState, revision: str) -> bool:
    """Returns whether a Deployment says that it made no progress within its start-up budget."""
    return any(
        _condition(workload, "Progressing", "False", "ProgressDeadlineExceeded") is not None
        for workload in state.snapshot.workloads
        if revision_of(workload) == revision
    )


def failing(pod: Pod) -> bool:
    """Returns whether the pod has failed, unlike one that still loads."""
    waits = pod.waiting_reason in cases.WAITING and not pod.foreign
    return not pod.ready and (pod.restarts > 0 or pod.phase == "Failed" or waits)


def _pods(state: ReconcileState, revision: str | None) -> list[Pod]:
    """Returns the pods that matter, leaders and workers.

    A pod that has ended stays in the cluster long after its successor serves. It matters if it has no successor, or for some minutes while
    its successor is not Ready: a node that refuses one pod may refuse the next.
    """
    served = (names.ROLE_ENGINE, names.ROLE_WORKER)
    pods = [pod for pod in state.snapshot.pods if pod.role in served and revision in (None, pod.revision) and not pod.terminating]
    alive = [pod for pod in pods if pod.phase not in ("Failed", "Succeeded")]
    succeeded = {pod.revision for pod in alive}
    starting = {pod.revision for pod in alive if not pod.ready}

    def matters(pod: Pod) -> bool:
        recent = pod.created_at is not None and (state.context.now - pod.created_at).total_seconds() < ENDED_S
        return pod.revision not in succeeded or (recent and pod.revision in starting)

    return [*alive, *(pod for pod in pods if pod.phase == "Failed" and matters(pod))]


def _rank(trouble: Trouble, pod: Pod, *, grouped: bool) -> tuple[int, bool, str, str]:
    """Returns the place of a pod's trouble among those of the other pods. It does not depend on counts that grow, so it is steady."""
    exits = trouble.reason is Reason.ENGINE_FAILING
    if trouble.kind is Kind.CANNOT_START and not exits:
        order = 0
    elif trouble.kind is Kind.NO_ROOM:
        order = 1 if grouped else 3
    else:
        order = 2 if trouble.kind is Kind.CANNOT_START else 4
    return (order, not trouble.terminal, pod.created_at.isoformat() if pod.created_at else "", pod.name)


def _of_pod(state: ReconcileState, pod: Pod) -> Trouble | None:
    if pod.ready:
        return None
    if pod.phase == "Failed":
        return _ended(pod)
    if pod.unschedulable:
        return _unscheduled(state, pod)
    if arrives(state, pod):
        return None  # What failed before is over.
    waited_s = (state.context.now - pod.scheduled_since).total_seconds() if pod.scheduled_since else 0.0
    if case := _container_case(pod):
        said = pod.message.removeprefix(f"{pod.container}: ") if pod.message else pod.waiting_reason or ""
        text = steady_text.pull_error(said) if case is cases.IMAGE else steady_text.last_words(said)
        exits = case.reason is Reason.ENGINE_FAILING or pod.fetch is not None or pod.restarts > 0
        return _trouble(case, text, pod, terminal=pod.restarts >= TERMINAL_RESTARTS if exits else waited_s >= CANNOT_START_S)
    if pod.mounts is not None and waited_s >= SET_UP_S:
        return _trouble(cases.NOT_SET_UP, "the events name which", pod, terminal=waited_s >= SET_UP_S + CANNOT_START_S)
    return None


def _container_case(pod: Pod) -> Case | None:
    case = cases.WAITING.get(pod.waiting_reason or "")
    if pod.foreign:
        return cases.OTHER_WAITS if case not in (None, cases.EXITS) else cases.OTHER_EXITS
    if case is cases.NOT_CREATED and pod.waiting_reason == "CreateContainerConfigError" and cases.NOT_FOUND.search(pod.message or ""):
        return cases.CONFIG
    if pod.fetch and case in (None, cases.EXITS):
        return cases.FETCH_FAILS[reason_of(pod)]
    if case is not cases.EXITS:
        return case or (cases.RUNS_AGAIN if pod.restarts else None)
    if pod.exit_reason in cases.NEVER_STARTED:
        return cases.NOT_STARTED
    if pod.exit_reason == "OOMKilled":
        return cases.OUT_OF_MEMORY
    return cases.KILLED if pod.exit_code in (137, 143) else cases.EXITS


def _unscheduled(state: ReconcileState, pod: Pod) -> Trouble:
    text = pod.unschedulable or ""
    if pod.gated:
        return _trouble(cases.GATED, text, pod, since=pod.unschedulable_since)
    text = steady_text.scheduler_words(text)
    if "persistentvolumeclaim" in text and cases.NOT_FOUND.search(text):
        return _trouble(cases.NO_CLAIM, text, pod)
    if _NO_SUCH_NODE in text and "Insufficient" not in text and (labels := _node_labels(state, pod)):
        asked = ", ".join(f"{key}={value}" for key, value in labels.items())
        text = f"{text}. It asks for nodes with {asked}: compare kubectl get nodes -L {','.join(labels)}"
    devices = any("/" in word for part in text.split(", ") if part.startswith("Insufficient ") for word in part.split()[1:])
    return _trouble(cases.NO_ACCELERATORS if devices else cases.UNSCHEDULABLE, text, pod, since=pod.unschedulable_since)


def _node_labels(state: ReconcileState, pod: Pod) -> Mapping[str, str]:
    """Returns the labels that a node needs, by the pod's workload."""
    template = next((template_of(item) for item in state.snapshot.workloads if revision_of(item) == pod.revision), None)
    found: Mapping[str, str] = ((template or {}).get("spec") or {}).get("nodeSelector") or {}
    return dict(sorted(found.items()))


def _ended(pod: Pod) -> Trouble:
    reason = pod.reason or ""
    case = cases.EVICTED if reason in cases.DISPLACED else cases.ENDED if reason in cases.OWN_END else cases.NODE_REFUSES
    text = steady_text.last_words(pod.message or "")
    return _trouble(case, f"{reason}: {text}" if reason and text else reason or text or pod.phase, pod)


def _missing(state: ReconcileState, revision: str | None) -> Trouble | None:
    """Returns the lack of pods in the groups of a LeaderWorkerSet. Nothing but the missing pods tells that they are refused."""
    for workload in state.snapshot.workloads:
        hash_ = revision_of(workload)
        if workload["kind"] != LEADER_WORKER_SET or revision not in (None, hash_) or not workload["spec"].get("replicas", 1):
            continue
        pods = _pods(state, hash_)
        leaders = [pod for pod in pods if pod.role == names.ROLE_ENGINE]
        size = int(workload["spec"]["leaderWorkerTemplate"]["size"])
        created = [pod.created_at for pod in leaders if pod.created_at]
        oldest = min(created, default=None)
        leaves = any(pod.revision == hash_ and pod.terminating for pod in state.snapshot.pods)
        stamp = workload["metadata"].get("creationTimestamp")
        begun = oldest or (datetime.fromisoformat(stamp) if stamp else None)
        late = begun is None or state.context.now - begun >= timedelta(seconds=WORKERS_S)
        if not leaves and late and (not leaders or len(pods) < size * len(leaders)):
            return _trouble(cases.NO_PODS, "the StatefulSet's events name the cause", workload, oldest)
    return None


def _crash_loop(state: ReconcileState, revision: str | None) -> Trouble | None:
    """Returns the crash loop of an active revision's groups. It names no pod: each lasts for one start only."""
    active = state.stable or state.candidate
    if active is None or active.resolved.nodes == 1 or revision not in (None, active.hash):
        return None
    pool, workload = state.pool(active.hash), next((item for item in state.snapshot.workloads if revision_of(item) == active.hash), None)
    lacking = pool.wanted - pool.serving
    if workload is None or lacking <= 0 or exits(active.trial, pods_of(state, active)) < crash_loop_after(lacking):
        return None
    return _trouble(cases.GROUPS_EXIT, "the last words are in the log of the pod that has just ended", workload, terminal=True)


def _trouble(case: Case, text: str, about: Pod | Object, since: datetime | None = None, *, terminal: bool = False) -> Trouble:
    """Returns the trouble of a pod, or of a workload that cannot create pods."""
    facts = _pod_facts(about) if isinstance(about, Pod) else {"workload": about["metadata"]["name"], "revision": revision_of(about)}
    says, look = case.says.format(**facts), case.look.format(**facts)
    if isinstance(about, Pod) and "{pod}" not in case.says:
        says = f"Pod {about.name}: {says}"
    lasts = case.kind is Kind.CANNOT_START and (terminal or case is cases.FORBIDDEN)
    return Trouble(case.kind, case.reason, f"{says} (see {look}): {text}", since, terminal=lasts)


def _pod_facts(pod: Pod) -> dict[str, str]:
    return {
        "pod": pod.name,
        "container": pod.container or names.ROLE_ENGINE,
        "node": pod.node or "",
        "mounts": ", ".join(pod.mounts or ()) or "nothing",
    }


def _condition(workload: Object, type: str, status: str, reason: str | None = None) -> Object | None:
    """Returns a workload's condition if it has that status (and reason), else None."""
    conditions: Iterator[Object] = iter((workload.get("status") or {}).get("conditions") or ())
    return next(
        (item for item in conditions if item.get("type") == type and item.get("status") == status and reason in (None, item.get("reason"))),
        None,
    )
