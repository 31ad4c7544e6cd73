"""Condition types, the closed list of reasons, and how a condition changes.

``REASONS`` is the reference: each reason with its meaning and with what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

MAX_MESSAGE = 1024

ConditionStatus = Literal["True", "False", "Unknown"]


class ConditionType(StrEnum):
    """The conditions of a DFlashDeployment, in the order they are shown."""

    AVAILABLE = "Available"
    """Serving at least replicas - maxUnavailable, of any revision."""
    READY = "Ready"
    """Available, and what runs is what the spec asks for."""
    RECONCILING = "Reconciling"
    """A change made by the user is not finished. The tuner never sets it."""
    STALLED = "Stalled"
    """The operator cannot continue without you."""
    METRICS_AVAILABLE = "MetricsAvailable"
    """The operator can read what the engines measure."""
    TUNING_READY = "TuningReady"
    """The tuner has what it needs to decide."""
    ROLLOUT_HEALTHY = "RolloutHealthy"
    """The current rollout, if any, makes progress and no metric failed."""
    SPECULATION_HEALTHY = "SpeculationHealthy"
    """The drafter's tokens are being accepted."""
    ACCESSORIES_READY = "AccessoriesReady"
    """Service, PodDisruptionBudget, NetworkPolicy, PodMonitor and the Jobs that fetch weights are as the spec asks."""


class Reason(StrEnum):
    """Every reason a condition, a notice, an event or the tuner gives."""

    # Availability and progress.
    ENOUGH_REPLICAS = "EnoughReplicas"
    TOO_FEW_REPLICAS = "TooFewReplicas"
    SCALED_TO_ZERO = "ScaledToZero"
    SCALED_TO_ONE = "ScaledToOne"
    AS_SPECIFIED = "AsSpecified"
    NEW_GENERATION = "NewGeneration"
    STARTING = "Starting"
    SCALING = "Scaling"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    SETTLED = "Settled"
    RESOLVING_REVISIONS = "ResolvingRevisions"
    SUSPENDED = "Suspended"
    PAUSED = "Paused"
    NOT_STALLED = "NotStalled"
    # What a human must fix.
    INVALID_SPEC = "InvalidSpec"
    DRAFTER_MISMATCH = "DrafterMismatch"
    PAIR_UNKNOWN = "PairUnknown"
    ENGINE_UNSUPPORTED = "EngineUnsupported"
    REVISION_NOT_RESOLVED = "RevisionNotResolved"
    NAME_TAKEN = "NameTaken"
    LEADER_WORKER_SET_MISSING = "LeaderWorkerSetMissing"
    LEADER_WORKER_SET_UNLISTED = "LeaderWorkerSetUnlisted"
    REVISION_UNREADABLE = "RevisionUnreadable"
    INSUFFICIENT_ACCELERATORS = "InsufficientAccelerators"
    UNSCHEDULABLE = "Unschedulable"
    PODS_REFUSED = "PodsRefused"
    SCHEDULING_GATED = "SchedulingGated"
    EVICTED = "Evicted"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    CONFIG_MISSING = "ConfigMissing"
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    ENGINE_FAILING = "EngineFailing"
    SIDECAR_FAILING = "SidecarFailing"
    ROLLED_BACK = "RolledBack"
    ANALYSIS_DEADLINE_EXCEEDED = "AnalysisDeadlineExceeded"
    PERMISSION_DENIED = "PermissionDenied"
    DEFINITION_OUTDATED = "DefinitionOutdated"
    QUOTA_EXCEEDED = "QuotaExceeded"
    ADMISSION_DENIED = "AdmissionDenied"
    WRITES_FAIL = "WritesFail"
    # Metrics.
    MEASURED = "Measured"
    NO_TRAFFIC = "NoTraffic"
    NO_PODS = "NoPods"
    NOT_MEASURED = "NotMeasured"
    METRICS_MISSING = "MetricsMissing"
    METRICS_INCOMPLETE = "MetricsIncomplete"
    METRICS_STALE = "MetricsStale"
    METRICS_UNREACHABLE = "MetricsUnreachable"
    PROMETHEUS_REQUIRED = "PrometheusRequired"
    PROMETHEUS_ERROR = "PrometheusError"
    # Tuner.
    TUNING_OFF = "TuningOff"
    LEARNING = "Learning"
    TUNED = "Tuned"
    FROZEN = "Frozen"
    REPLICA_LEAVING = "ReplicaLeaving"
    LOAD_UNCERTAIN = "LoadUncertain"
    MODEL_MISMATCH = "ModelMismatch"
    GAIN_TOO_SMALL = "GainTooSmall"
    GAIN_UNKNOWN = "GainUnknown"
    EXPLORING = "Exploring"
    NOT_FASTER = "NotFaster"
    DWELLING = "Dwelling"
    CHANGES_EXHAUSTED = "ChangesExhausted"
    DOWNTIME_NOT_ALLOWED = "DowntimeNotAllowed"
    # Rollout.
    NO_ROLLOUT = "NoRollout"
    PROGRESSING = "Progressing"
    COMPLETED = "Completed"
    ANALYSIS_FAILED = "AnalysisFailed"
    INCONCLUSIVE = "Inconclusive"
    ABORTED = "Aborted"
    PINNED = "Pinned"
    UNPROVEN = "Unproven"
    OUTSIDE_WINDOW = "OutsideWindow"
    PREFETCHING = "Prefetching"
    PREFETCH_FAILED = "PrefetchFailed"
    WEIGHTS_FORBIDDEN = "WeightsForbidden"
    WEIGHTS_NOT_FOUND = "WeightsNotFound"
    WEIGHTS_CORRUPT = "WeightsCorrupt"
    STORAGE_FULL = "StorageFull"
    HUB_UNREACHABLE = "HubUnreachable"
    TAKING_REFERENCE = "TakingReference"
    ANALYZING = "Analyzing"
    ANALYSIS_PASSED = "AnalysisPassed"
    ROLLING_BACK = "RollingBack"
    SUPERSEDED = "Superseded"
    REVERTED = "Reverted"
    REPLICA_BIAS = "ReplicaBias"
    TRAFFIC_DIFFERS = "TrafficDiffers"
    TEXT_DIFFERS = "TextDiffers"
    NOT_COMPARED = "NotCompared"
    STABLE_NOT_SERVING = "StableNotServing"
    PROMOTED_BY_HAND = "PromotedByHand"
    PIN_UNKNOWN = "PinUnknown"
    ANNOTATION_IGNORED = "AnnotationIgnored"
    # Speculation.
    ACCEPTING = "Accepting"
    SPECULATION_OFF = "SpeculationOff"
    DRAFTER_COLLAPSED = "DrafterCollapsed"
    # Notices.
    REVISION_NOT_PINNED = "RevisionNotPinned"
    ENGINE_RELEASE_UNTESTED = "EngineReleaseUntested"
    ADMIN_ENDPOINTS_OPEN = "AdminEndpointsOpen"
    NEWER_DEFAULTS_AVAILABLE = "NewerDefaultsAvailable"
    NEWER_TARGET_AVAILABLE = "NewerTargetAvailable"
    NEWER_DRAFTER_AVAILABLE = "NewerDrafterAvailable"
    HUB_UNAVAILABLE = "HubUnavailable"
    FOREIGN_OBJECT = "ForeignObject"
    RENDERED_DIFFERENTLY = "RenderedDifferently"
    FOREIGN_TEMPLATE_CHANGE = "ForeignTemplateChange"
    FIELD_FIGHT = "FieldFight"
    OUTAGE_AHEAD = "OutageAhead"
    CONCURRENCY_LIMITED = "ConcurrencyLimited"
    CONCURRENCY_DOES_NOT_FIT = "ConcurrencyDoesNotFit"


@dataclass(frozen=True, slots=True)
class ReasonDoc:
    """What a reason means, and what to do about it (empty where nothing needs doing)."""

    meaning: str
    remedy: str = ""


REASONS: Mapping[Reason, ReasonDoc] = {
    Reason.ENOUGH_REPLICAS: ReasonDoc("At least replicas - maxUnavailable engine pods are serving."),
    Reason.TOO_FEW_REPLICAS: ReasonDoc(
        "Fewer engine pods are serving than replicas - maxUnavailable.", "Look at the pods that are not Ready: their events and logs."
    ),
    Reason.SCALED_TO_ZERO: ReasonDoc("spec.replicas is 0, so nothing serves.", "Raise spec.replicas to serve."),
    Reason.SCALED_TO_ONE: ReasonDoc(
        "spec.replicas became 1 in the middle of a trial, and the stable revision keeps the one replica.",
        "Raise spec.replicas or set spec.rollout.maxSurge to 1, and the trial goes on; or promote or abort the candidate by annotation.",
    ),
    Reason.AS_SPECIFIED: ReasonDoc("All desired replicas serve what the spec asks for."),
    Reason.NEW_GENERATION: ReasonDoc("The spec was changed, and the operator has not acted on it yet."),
    Reason.STARTING: ReasonDoc("Engine pods are loading their models; status.startupBudgetSeconds says how long that may take."),
    Reason.SCALING: ReasonDoc("Replicas are being added or removed."),
    Reason.ROLLOUT_IN_PROGRESS: ReasonDoc("A new revision is replacing the active one; see status.rollout."),
    Reason.SETTLED: ReasonDoc("Nothing is left to do for the last change."),
    Reason.RESOLVING_REVISIONS: ReasonDoc(
        "The model hub is asked for the commits and the config.json of target and drafter. It has ten seconds to answer."
    ),
    Reason.SUSPENDED: ReasonDoc("spec.suspend is true: no object is written; pods keep serving.", "Set spec.suspend to false to continue."),
    Reason.PAUSED: ReasonDoc("spec.rollout.paused is true: the rollout waits.", "Set spec.rollout.paused to false to continue."),
    Reason.NOT_STALLED: ReasonDoc("No action is needed."),
    Reason.INVALID_SPEC: ReasonDoc(
        "The spec breaks a rule that only the operator can check; what ran before keeps running.", "Fix the field that the message names."
    ),
    Reason.DRAFTER_MISMATCH: ReasonDoc(
        "The drafter was trained for another target, by the catalog or by the config.json of both.", "Use a drafter of this target."
    ),
    Reason.PAIR_UNKNOWN: ReasonDoc(
        "The catalog does not know this target and drafter, and the spec does not say enough.",
        "Set spec.drafter.model and spec.drafter.trainedBlockSize.",
    ),
    Reason.ENGINE_UNSUPPORTED: ReasonDoc(
        "This engine release cannot run what the spec asks for.", "Choose the release or the setting the message names."
    ),
    Reason.REVISION_NOT_RESOLVED: ReasonDoc(
        "The model hub gave no commit for a branch or tag. Weights are fetched into spec.storage at a commit only, so no revision is made; "
        "what runs keeps running. Without spec.storage it is an event, and each engine loads what the branch names when it starts.",
        "Set the field that the message names to a 40-digit commit, or let the operator reach the hub. It asks again by itself.",
    ),
    Reason.NAME_TAKEN: ReasonDoc(
        "An object that the operator must write exists and belongs to something else.",
        "Delete or rename that object, or give the DFlashDeployment another name.",
    ),
    Reason.LEADER_WORKER_SET_MISSING: ReasonDoc(
        "A replica spans several nodes, by the spec or in what runs, and the cluster does not serve LeaderWorkerSet.",
        "Install LeaderWorkerSet 0.9 or later, or set spec.parallelism.nodes to 1.",
    ),
    Reason.LEADER_WORKER_SET_UNLISTED: ReasonDoc(
        "Replicas span several nodes, and the API server does not list LeaderWorkerSets; nothing is changed, and what runs keeps running.",
        "Let the operator list LeaderWorkerSets: its log names the error. It tries again by itself.",
    ),
    Reason.REVISION_UNREADABLE: ReasonDoc(
        "A stored revision was written by a newer operator, or damaged; nothing is changed, and what runs keeps running.",
        "Upgrade the operator, or delete the ControllerRevision the message names if nothing runs it.",
    ),
    Reason.INSUFFICIENT_ACCELERATORS: ReasonDoc(
        "No node has the accelerators that an engine pod needs. The pod stays pending and starts when there is room.",
        "Free or add accelerators, lower spec.replicas, or set spec.rollout.maxSurge to 0.",
    ),
    Reason.UNSCHEDULABLE: ReasonDoc(
        "No node accepts an engine pod, for another reason than accelerators. The pod stays pending and starts when a node accepts it.",
        "The message is the scheduler's: fix what it names. If no node matches the selector, compare spec.accelerator.product with the "
        "label nvidia.com/gpu.product of your nodes.",
    ),
    Reason.SCHEDULING_GATED: ReasonDoc(
        "A queue, for instance Kueue, has not admitted an engine pod yet. The pod stays pending.",
        "Look at the queue that owns the gate the message names.",
    ),
    Reason.PODS_REFUSED: ReasonDoc(
        "The API server refuses the engine pods (a quota, a policy, a webhook, a missing priority class).",
        "Fix what the message names; the controller tries again by itself.",
    ),
    Reason.EVICTED: ReasonDoc(
        "A node gave an engine pod up or refused it (memory or disk pressure, a shutdown, a device that is gone).",
        "Look at the node that the message names.",
    ),
    Reason.IMAGE_UNAVAILABLE: ReasonDoc(
        "A container's image cannot be pulled: its name, its registry, or the pull secret.",
        "Look at the pod's events, and fix spec.engine.image or the pull secret.",
    ),
    Reason.CONFIG_MISSING: ReasonDoc(
        "An engine pod needs a Secret, a ConfigMap, a key or a volume claim that does not exist.",
        "Create what the message names, or change the field that names it.",
    ),
    Reason.CONTAINER_NOT_CREATED: ReasonDoc(
        "A container was never created or started, so there is no log.", "Look at the pod's events, as the message says."
    ),
    Reason.SIDECAR_FAILING: ReasonDoc(
        "A container that this operator did not add keeps a pod from being Ready. It says nothing about the engine.",
        "Fix that container, or what injects it; the message names it and the command that shows more.",
    ),
    Reason.ENGINE_FAILING: ReasonDoc(
        "An engine exits, is killed, or does not serve within its start-up budget.",
        "Read the container's log, as the message says; it quotes the last words.",
    ),
    Reason.ROLLED_BACK: ReasonDoc(
        "The last change failed its analysis and the stable revision serves again.", "Change the spec, or spec.restartId to try again."
    ),
    Reason.ANALYSIS_DEADLINE_EXCEEDED: ReasonDoc(
        "The analysis was inconclusive at spec.rollout.deadline.", "Promote or abort the candidate with the annotation the message names."
    ),
    Reason.PERMISSION_DENIED: ReasonDoc("The API server refused a write.", "Grant the operator the right the message names."),
    Reason.DEFINITION_OUTDATED: ReasonDoc(
        "The CustomResourceDefinition in the cluster lacks a field that this operator writes.",
        "Apply the CustomResourceDefinition of this release: helm upgrade does, or kubectl apply --server-side --force-conflicts -f crds/.",
    ),
    Reason.QUOTA_EXCEEDED: ReasonDoc("A quota of the namespace refuses an object.", "Raise the quota, or free what it counts."),
    Reason.ADMISSION_DENIED: ReasonDoc(
        "An admission webhook or policy refuses an object.", "Satisfy the rule that the message names, or exempt the operator's objects."
    ),
    Reason.WRITES_FAIL: ReasonDoc(
        "The API server fails some of the operator's writes, often because an admission webhook does not answer. It keeps trying.",
        "Repair the webhook that the message names, or take away its configuration.",
    ),
    Reason.MEASURED: ReasonDoc("The engines' metrics are read."),
    Reason.NO_TRAFFIC: ReasonDoc("No request was served in the window, so there is nothing to measure."),
    Reason.NO_PODS: ReasonDoc("No engine pod is Ready, so there is nothing to measure."),
    Reason.NOT_MEASURED: ReasonDoc("There is no measurement yet."),
    Reason.METRICS_MISSING: ReasonDoc(
        "There are no metrics of the engines.", "Check that the engine's metrics are on and that Prometheus scrapes its pods."
    ),
    Reason.METRICS_INCOMPLETE: ReasonDoc(
        "Metrics that a decision needs are missing beside others; the message names them.",
        "Check that no relabelling rule drops them, and that Prometheus keeps classic histograms.",
    ),
    Reason.METRICS_STALE: ReasonDoc("The newest sample is too old.", "Check that Prometheus still scrapes the engine pods."),
    Reason.METRICS_UNREACHABLE: ReasonDoc(
        "The metrics endpoint of the engine pods did not answer.", "Check network policies between the operator and the engine pods."
    ),
    Reason.PROMETHEUS_REQUIRED: ReasonDoc(
        "There are too many engine pods for the operator to scrape by itself.",
        "Set a Prometheus: the chart's value prometheus.url (without the chart DFLASH_PROMETHEUS_URL).",
    ),
    Reason.PROMETHEUS_ERROR: ReasonDoc("Prometheus refused or failed a query.", "Check the operator's Prometheus address and credentials."),
    Reason.TUNING_OFF: ReasonDoc("spec.tuning.mode is Off."),
    Reason.LEARNING: ReasonDoc("The tuner has too little traffic to decide, or most of it tells no step times; the message says why."),
    Reason.TUNED: ReasonDoc("The active block size is the best for this load, or is being changed to it."),
    Reason.FROZEN: ReasonDoc("During a rollout, a pin, a pause or a suspension the tuner changes nothing."),
    Reason.REPLICA_LEAVING: ReasonDoc(
        "A replica is leaving, and no rollout asked for it: its node is drained, or it was evicted, deleted or scaled away."
    ),
    Reason.LOAD_UNCERTAIN: ReasonDoc(
        "Two ways of measuring concurrency disagree: an engine's counter does not mean what the operator takes it for.",
        "Check that the engine release is supported, and that none of its series is dropped or renamed on the way to the operator.",
    ),
    Reason.MODEL_MISMATCH: ReasonDoc(
        "Twice in a day step times were not as predicted.",
        "Look for what changed: GPUs, clocks, neighbours on the node, much longer prompts. The decision is in the operator's log; read it "
        "with dflash_controller.cli.replay, as docs/how-to/explain-a-tuner-decision.md says.",
    ),
    Reason.GAIN_TOO_SMALL: ReasonDoc("A change would gain less than spec.tuning.minGainPercent, or less than the switching cost."),
    Reason.GAIN_UNKNOWN: ReasonDoc(
        "The gain of a block size is not known at this load and a trial on one replica would be worth its cost, but none is made now. The "
        "message says why.",
        "With spec.tuning.mode Auto the operator makes such trials itself; see docs/explanation/exploration.md.",
    ),
    Reason.EXPLORING: ReasonDoc(
        "A block size is tried on one replica because its gain at this load is not known and knowing it is expected to be worth the trial."
    ),
    Reason.NOT_FASTER: ReasonDoc(
        "A trial of the tuner has measured its block size, which is not as much faster as is asked for. Nothing is wrong, and what was "
        "measured is kept."
    ),
    Reason.DWELLING: ReasonDoc("The last change is younger than spec.tuning.minDwell, or the block size failed a trial recently."),
    Reason.CHANGES_EXHAUSTED: ReasonDoc("spec.tuning.maxChangesPerDay changes were made in the last 24 hours."),
    Reason.DOWNTIME_NOT_ALLOWED: ReasonDoc(
        "The change would take the last serving replica down.", "Add a replica or surge, or set spec.tuning.allowDowntime to true."
    ),
    Reason.NO_ROLLOUT: ReasonDoc("No rollout is under way."),
    Reason.PROGRESSING: ReasonDoc("The rollout makes progress."),
    Reason.COMPLETED: ReasonDoc("The last rollout was completed."),
    Reason.ANALYSIS_FAILED: ReasonDoc("The candidate did worse than a limit of spec.rollout.analysis.", "See status.rollout.analysis."),
    Reason.INCONCLUSIVE: ReasonDoc("Neither the probe nor the traffic has given a verdict yet."),
    Reason.ABORTED: ReasonDoc("Somebody aborted the candidate.", "Change the spec, or spec.restartId to try again."),
    Reason.PINNED: ReasonDoc("An annotation pins another revision than the spec asks for.", "Remove the annotation serving.dflash.io/pin."),
    Reason.UNPROVEN: ReasonDoc("The revision was promoted without an analysis, with no replica to judge."),
    Reason.OUTSIDE_WINDOW: ReasonDoc("spec.rollout.window is closed; the rollout starts when it opens."),
    Reason.PREFETCHING: ReasonDoc("Jobs fetch the candidate's weights to the nodes, before a replica is taken down for it."),
    Reason.PREFETCH_FAILED: ReasonDoc(
        "The candidate's weights could not be fetched, so no replica was taken down for it.",
        "Fix what the message names. The next attempt is at the time in the message, or as soon as the failed Job is deleted.",
    ),
    Reason.WEIGHTS_FORBIDDEN: ReasonDoc(
        "The hub refuses a model's weights (401 or 403): no token, one that is not valid, or terms that its account has not accepted.",
        "Accept the terms on the page that the message names, and name a Secret with a token in spec.huggingFace.tokenSecretRef.",
    ),
    Reason.WEIGHTS_NOT_FOUND: ReasonDoc(
        "The hub has no such model, or the model has no such commit.",
        "Fix spec.target or spec.drafter. For a private model, set spec.huggingFace.tokenSecretRef.",
    ),
    Reason.WEIGHTS_CORRUPT: ReasonDoc(
        "A downloaded file has another hash than the hub lists. It was deleted, and no engine has seen it.",
        "Check the proxy or mirror (HF_ENDPOINT, HTTPS_PROXY) and the disk of the storage.",
    ),
    Reason.STORAGE_FULL: ReasonDoc(
        "The storage has less free space than the weights need. The message has both numbers.",
        "Enlarge the storage, or delete what is not needed there. The download continues where it ended.",
    ),
    Reason.HUB_UNREACHABLE: ReasonDoc(
        "The hub did not answer for 10 minutes. The download is tried again and continues where it ended.",
        "Check the network from the pods, and HTTPS_PROXY and HF_ENDPOINT in spec.engine.env.",
    ),
    Reason.TAKING_REFERENCE: ReasonDoc("The stable revision answers the probe first, because candidate and stable cannot serve at once."),
    Reason.ANALYZING: ReasonDoc("The candidate serves and is being compared with stable; see status.rollout.analysis."),
    Reason.ANALYSIS_PASSED: ReasonDoc("The candidate passed every limit of spec.rollout.analysis."),
    Reason.ROLLING_BACK: ReasonDoc("The candidate failed; its replicas are being replaced by stable ones."),
    Reason.SUPERSEDED: ReasonDoc("The spec asks for something else than the last candidate, which was not promoted yet or had failed."),
    Reason.REVERTED: ReasonDoc(
        "The spec or a pin went back to a revision that was still being replaced: its replicas are kept, without a trial."
    ),
    Reason.REPLICA_BIAS: ReasonDoc(
        "Replicas of one revision differ among themselves by more than the limit, so one candidate replica is not enough evidence.",
        "Promote or abort the candidate with the annotation the message names, or widen the limit.",
    ),
    Reason.TRAFFIC_DIFFERS: ReasonDoc(
        "Candidate and stable do not get the same kind of requests, so their metrics cannot be compared.",
        "Balance requests evenly over the Service, or let the probe decide.",
    ),
    Reason.TEXT_DIFFERS: ReasonDoc(
        "The candidate's answers to greedy prompts differ from stable's; a drafter must never change the output.",
        "Do not use this drafter or engine build; see status.rollout.analysis.",
    ),
    Reason.NOT_COMPARED: ReasonDoc("Nothing that could change how the engine performs has changed, so nothing was compared."),
    Reason.STABLE_NOT_SERVING: ReasonDoc("The stable revision does not serve, so the candidate was not compared with it."),
    Reason.PROMOTED_BY_HAND: ReasonDoc("The annotation serving.dflash.io/promote named the candidate."),
    Reason.PIN_UNKNOWN: ReasonDoc(
        "The annotation serving.dflash.io/pin names a revision that is not kept.", "Name one of status.revisions, or remove the annotation."
    ),
    Reason.ANNOTATION_IGNORED: ReasonDoc(
        "The annotation serving.dflash.io/promote or serving.dflash.io/abort names no revision that it can act on.",
        "Name the candidate (status.candidateRevision); set an annotation of an earlier trial again.",
    ),
    Reason.ACCEPTING: ReasonDoc("The target accepts the drafter's tokens."),
    Reason.SPECULATION_OFF: ReasonDoc(
        "The target runs without speculation; False if the operator switched it off because the drafter had collapsed.",
        "If it is False, set spec.drafter to one that works, or spec.blockSize to 1 to keep speculation off.",
    ),
    Reason.DRAFTER_COLLAPSED: ReasonDoc(
        "The target accepts almost none of the drafter's tokens: answers are right, but slower than without speculation.",
        "See the causes in the message; in tuning mode Auto the operator falls back or switches speculation off by itself.",
    ),
    Reason.REVISION_NOT_PINNED: ReasonDoc("A model revision is a branch or tag, which may move.", "Set the revision to a 40-digit commit."),
    Reason.ENGINE_RELEASE_UNTESTED: ReasonDoc(
        "The command line is that of the nearest older release this operator was tested with.",
        "Choose a tested release, or watch the first start.",
    ),
    Reason.ADMIN_ENDPOINTS_OPEN: ReasonDoc(
        "Whoever reaches the serving port can administer the engine, as the message says by which setting.",
        "Take the setting back; change spec.restartId if an older operator made the pods. Or admit only a gateway with a list of paths; "
        "see docs/reference/security.md.",
    ),
    Reason.NEWER_DEFAULTS_AVAILABLE: ReasonDoc(
        "This operator has other defaults than those stored with the running revision.", "Change spec.restartId to adopt them."
    ),
    Reason.NEWER_TARGET_AVAILABLE: ReasonDoc(
        "The branch or tag of spec.target.revision has moved since it was resolved. Nothing changes by itself.",
        "Change spec.restartId to adopt what it names now, or set spec.target.revision to the commit you want.",
    ),
    Reason.NEWER_DRAFTER_AVAILABLE: ReasonDoc(
        "The branch or tag of spec.drafter.revision has moved since it was resolved. Nothing changes by itself.",
        "Change spec.restartId to adopt what it names now, or set spec.drafter.revision to the commit you want.",
    ),
    Reason.HUB_UNAVAILABLE: ReasonDoc(
        "The model hub does not say what a branch or tag names now, so a newer commit is not reported. What runs is not touched.",
        "Let the operator reach the hub, or set the field that the message names to a commit.",
    ),
    Reason.FOREIGN_OBJECT: ReasonDoc(
        "An object carries the label serving.dflash.io/deployment, and the operator did not make it. It is neither counted nor written.",
        "Take the label away from the object that the message names, and from its pods: the Service selects pods by it.",
    ),
    Reason.RENDERED_DIFFERENTLY: ReasonDoc(
        "The candidate also changes settings of the engine that another release of the operator rendered differently. "
        "They are judged like a change of the engine.",
    ),
    Reason.FOREIGN_TEMPLATE_CHANGE: ReasonDoc(
        "Something else changed a pod template the operator wrote.", "Find the writer in the workload's managedFields and stop it."
    ),
    Reason.FIELD_FIGHT: ReasonDoc(
        "Another field manager keeps changing a field.",
        "Stop the field manager that the message names, or leave the field to it.",
    ),
    Reason.OUTAGE_AHEAD: ReasonDoc(
        "With one replica and no surge the service is down while the model loads.",
        "Set spec.rollout.maxSurge to 1 to avoid it.",
    ),
    Reason.CONCURRENCY_LIMITED: ReasonDoc(
        "The engines serve fewer requests at once than spec.engine.maxConcurrency, because their memory holds fewer.",
        "The message names what helps. The tuner, the metric dflash_max_concurrency and the dashboards use what the engines serve.",
    ),
    Reason.CONCURRENCY_DOES_NOT_FIT: ReasonDoc(
        "By an estimate from the sizes of target, drafter and accelerator, spec.engine.maxConcurrency does not fit in memory.",
        "The message names what helps. Once the engines serve, status.effectiveMaxConcurrency says how many requests they take.",
    ),
}


def set_condition(
    existing: Sequence[Mapping[str, Any]],
    type: ConditionType,
    status: ConditionStatus | bool | None,
    reason: Reason,
    message: str,
    observed_generation: int | None,
    now: datetime,
) -> Sequence[Mapping[str, Any]]:
    """``existing`` with one condition set; the very same sequence where nothing changed.

    ``status`` may be given as a bool, with None for Unknown. lastTransitionTime moves only when the status flips.
    """
    word = status if isinstance(status, str) else {True: "True", False: "False", None: "Unknown"}[status]
    old = next((condition for condition in existing if condition.get("type") == type), None)
    new: dict[str, Any] = {
        "type": str(type),
        "status": word,
        "reason": str(reason),
        "message": shorten(message),
        "lastTransitionTime": old["lastTransitionTime"] if old and old.get("status") == word else timestamp(now),
    }
    if observed_generation is not None:
        new["observedGeneration"] = observed_generation
    if old == new:
        return existing
    others = [condition for condition in existing if condition.get("type") != type]
    return sorted([*others, new], key=lambda condition: _position(str(condition.get("type"))))


def get_condition(conditions: Iterable[Mapping[str, Any]], type: ConditionType) -> Mapping[str, Any] | None:
    """The condition of a type, if there is one."""
    return next((condition for condition in conditions if condition.get("type") == type), None)


def timestamp(now: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as Kubernetes writes it."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shorten(message: str, limit: int = MAX_MESSAGE) -> str:
    """The message cut to ``limit`` characters, with an ellipsis where something is missing."""
    return message if len(message) <= limit else message[: limit - 1] + "…"


def _position(type: str) -> tuple[int, str]:
    known = [str(known) for known in ConditionType]
    return (known.index(type) if type in known else len(known), type)
