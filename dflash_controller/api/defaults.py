"""What holds where the user left a field out.

Defaults live here and not in the CRD, so that they can move without touching stored objects (``replicas`` is the exception: the
scale subresource needs it in the object). Facts about models come from the catalog and are given as arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeVar

from dflash_controller.api.gates import GATE_SPECS, Gate
from dflash_controller.api.quantity import parse_duration, parse_quantity
from dflash_controller.api.speculation import Fixed, Off, Speculation
from dflash_controller.api.types import Spec

REPLICAS = 1
MAX_CONCURRENCY = 32
ACCELERATOR_RESOURCE = "nvidia.com/gpu"
ACCELERATOR_PRODUCT = "NVIDIA-B200"
BLOCK_SIZES = (8, 16)
TERMINATION_GRACE_PERIOD_S = 600
SERVICE_TYPE = "ClusterIP"
HISTORY_LIMIT = 10
TUNING_WINDOW_S = 300
MAX_TRIALS_PER_WEEK = 1

T = TypeVar("T")


def weights_there(spec: Spec) -> str | None:
    """Returns the part of ``spec.storage`` that is read-only and so must hold the weights already, with the cause; None without one."""
    storage = spec.storage
    if storage is not None and storage.image is not None:
        return "spec.storage.image is set: the image holds the weights already"
    if storage is not None and storage.persistent_volume_claim is not None and storage.persistent_volume_claim.read_only:
        return "spec.storage.persistentVolumeClaim.readOnly is true: the claim holds the weights already"
    return None


def scratch_limit(spec: Spec) -> tuple[str, int] | None:
    """Returns how many bytes an emptyDir may hold before the kubelet evicts the pod, and the field that says so; None: no limit."""
    storage, resources = spec.storage, spec.pod_template.resources
    if storage is None or storage.empty_dir is None:
        return None
    limits = resources.limits if resources else None
    given = {
        "spec.storage.emptyDir.sizeLimit": storage.empty_dir.size_limit,
        "spec.podTemplate.resources.limits.ephemeral-storage": limits.ephemeral_storage if limits else None,
    }
    known = [(field, int(parse_quantity(quantity))) for field, quantity in given.items() if quantity is not None]
    return min(known, key=lambda found: found[1], default=None)


TuningMode = Literal["Off", "Advise", "Auto"]
Actuator = Literal["Auto", "Schedule", "Restart"]
OnInconclusive = Literal["Hold", "Promote", "Rollback"]


@dataclass(frozen=True, slots=True)
class TuningPolicy:
    """``spec.tuning`` with every default filled in."""

    mode: TuningMode
    block_sizes: tuple[int, ...]
    """Ascending; 1 stands for speculation off."""
    actuator: Actuator
    min_gain_percent: float
    window_s: int
    min_dwell_s: int
    max_changes_per_day: int
    allow_downtime: bool
    exploration: bool = True
    """Whether a block size may be tried because its gain is not known."""
    max_trials_per_week: int = MAX_TRIALS_PER_WEEK
    """Exploratory trials of one block size at one kind of load in seven days."""


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """``spec.rollout.probe`` with every default filled in."""

    enabled: bool
    prompts: int
    max_tokens: int
    prompts_per_minute: int
    timeout_s: int
    max_mismatch_percent: float


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """When rollouts may start: a cron expression of five fields in a time zone, and a length."""

    schedule: str
    duration_s: int
    time_zone: str


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """``spec.rollout`` with every default filled in; surge and unavailable are replicas."""

    max_surge: int
    max_unavailable: int
    analysis: dict[str, Gate]
    """By the metric's name."""
    probe: ProbePolicy
    on_inconclusive: OnInconclusive
    automatic_rollback: bool
    deadline_s: int
    paused: bool
    window: MaintenanceWindow | None
    history_limit: int


GATES: dict[str, Gate] = {name: spec.default for name, spec in GATE_SPECS.items()}
"""By the metric's name."""


def engine_name(spec: Spec) -> Literal["sglang", "vllm"]:
    """The engine; sglang where none is named."""
    return spec.engine.name or "sglang"


def replicas(spec: Spec) -> int:
    """Wanted replicas."""
    return REPLICAS if spec.replicas is None else spec.replicas


def max_concurrency(spec: Spec) -> int:
    """Most requests in service at once per replica."""
    return spec.engine.max_concurrency or MAX_CONCURRENCY


def tensor_parallel(spec: Spec, recommended: int | None = None) -> int:
    """Accelerators per replica over all its nodes; ``recommended`` is the catalog's."""
    return spec.parallelism.tensor or max(recommended or 1, nodes(spec))


def nodes(spec: Spec) -> int:
    """Nodes per replica."""
    return spec.parallelism.nodes or 1


def termination_grace_period_s(spec: Spec) -> int:
    """How long a stopping pod may finish its requests, in seconds."""
    return spec.pod_template.termination_grace_period_seconds or TERMINATION_GRACE_PERIOD_S


def suspended(spec: Spec) -> bool:
    """Nothing below the deployment may be written."""
    return bool(spec.suspend)


def block_size(spec: Spec, trained_block_size: int) -> int:
    """Where the block size starts: the user's, else the trained one."""
    return spec.block_size or trained_block_size


def speculation_of(block: int) -> Speculation:
    """The speculation of one block size; 1 drafts nothing."""
    return Off() if block <= 1 else Fixed(block)


def effective_tuning(spec: Spec, trained_block_size: int) -> TuningPolicy:
    """``spec.tuning`` with its defaults. Blocks above the trained one are left out of the default choice."""
    tuning = spec.tuning
    default_blocks = tuple(block for block in BLOCK_SIZES if block <= trained_block_size) or (trained_block_size,)
    return TuningPolicy(
        mode=tuning.mode or "Advise",
        block_sizes=tuning.block_sizes or default_blocks,
        actuator=tuning.actuator or "Auto",
        min_gain_percent=_or(tuning.min_gain_percent, 5.0),
        window_s=_seconds(tuning.window, TUNING_WINDOW_S),
        min_dwell_s=_seconds(tuning.min_dwell, 1800),
        max_changes_per_day=_or(tuning.max_changes_per_day, 4),
        allow_downtime=bool(tuning.allow_downtime),
        exploration=_or(tuning.exploration.enabled, True),
        max_trials_per_week=_or(tuning.exploration.max_trials_per_week, MAX_TRIALS_PER_WEEK),
    )


def effective_rollout(spec: Spec) -> RolloutPolicy:
    """``spec.rollout`` with its defaults; percentages are of the spec's replicas.

    As apps/v1 does it: surge is rounded up, unavailable down, and where both come out as 0 one replica may be unavailable.
    """
    rollout, count = spec.rollout, replicas(spec)
    surge = _count(rollout.max_surge, 0, count, up=True)
    unavailable = _count(rollout.max_unavailable, 1, count, up=False)
    probe, window = rollout.probe, rollout.window
    return RolloutPolicy(
        max_surge=surge,
        max_unavailable=unavailable if surge or unavailable else 1,
        analysis=rollout.analysis.gates(),
        probe=ProbePolicy(
            enabled=_or(probe.enabled, True),
            prompts=probe.prompts or 64,
            max_tokens=probe.max_tokens or 256,
            prompts_per_minute=probe.prompts_per_minute or 60,
            timeout_s=_seconds(probe.timeout, 60),
            max_mismatch_percent=_or(probe.max_mismatch_percent, 5.0),
        ),
        on_inconclusive=rollout.on_inconclusive or "Hold",
        automatic_rollback=_or(rollout.automatic_rollback, True),
        deadline_s=_seconds(rollout.deadline, 7200),
        paused=bool(rollout.paused),
        window=MaintenanceWindow(window.schedule, parse_duration(window.duration), window.time_zone or "Etc/UTC") if window else None,
        history_limit=rollout.history_limit or HISTORY_LIMIT,
    )


def _or(written: T | None, default: T) -> T:
    return default if written is None else written


def _seconds(written: str | None, default: int) -> int:
    return default if written is None else parse_duration(written)


def _count(written: int | str | None, default: int, total: int, *, up: bool) -> int:
    if written is None:
        return default
    if isinstance(written, int):
        return written
    share = total * int(written.rstrip("%")) / 100
    return math.ceil(share) if up else math.floor(share)
