"""Rules between fields of one spec, in Python: those the CRD states in CEL too, and those only the operator can know.

The CRD's rules guard the door; these guard the operator against objects stored under an older CRD.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import PurePosixPath
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from dflash_controller.api.policy_types import Rollout, RolloutWindow
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Service, Spec, Storage

MAX_NAME_LENGTH = 40
_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)
OWNED_PREFIX = "serving.dflash.io/"
OWNED_LABELS = ("app.kubernetes.io/managed-by", "leaderworkerset.sigs.k8s.io/name")


def problems(
    spec: Spec, *, owned_flags: Mapping[str, str], host_path_roots: Sequence[str] = (), trained_block_size: int | None = None
) -> list[Problem]:
    """What is wrong with a spec by itself; empty where nothing is.

    ``owned_flags`` are the flags of its engine that the operator sets (``--port``); ``host_path_roots`` the directories below
    which the operator's settings allow hostPath; ``trained_block_size`` the catalog's, for a spec that leaves it out.
    """
    return [
        *_blocks(spec, spec.drafter.trained_block_size or trained_block_size),
        *_parallelism(spec),
        *_extra_args(spec.engine.extra_args, owned_flags),
        *_env(spec),
        *_rollout(spec.rollout),
        *_storage(spec.storage, host_path_roots),
        *_metadata(spec),
        *_service(spec.service),
    ]


def owned_flag(argument: str, owned_flags: Collection[str]) -> str | None:
    """The operator's flag that an argument sets, in full or abbreviated; None where there is none.

    Both engines take ``_`` for ``-`` and, being built on argparse, any unambiguous prefix for the flag.
    """
    name = argument.partition("=")[0].replace("_", "-")
    return next((flag for flag in sorted(owned_flags) if flag == name), None) or next(
        (flag for flag in sorted(owned_flags) if flag.startswith(name)), None
    )


def _blocks(spec: Spec, trained: int | None) -> Iterator[Problem]:
    blocks = spec.tuning.block_sizes
    if any(low >= high for low, high in pairwise(blocks)):
        yield Problem("spec.tuning.blockSizes", "block sizes must ascend, each once", "Sort them and remove repetitions.")
    if spec.tuning.actuator == "Schedule" and spec.engine.name != "vllm":
        yield Problem("spec.tuning.actuator", "SGLang has no schedule of block sizes", "Use Restart or Auto, or spec.engine.name vllm.")
    if trained is None:
        return
    too_large = f"is larger than {trained}, the block size the drafter was trained with"
    if spec.block_size is not None and spec.block_size > trained:
        yield Problem("spec.blockSize", f"{spec.block_size} {too_large}", f"Use at most {trained}.")
    for i, block in enumerate(blocks):
        if block > trained:
            yield Problem(f"spec.tuning.blockSizes[{i}]", f"{block} {too_large}", f"Use at most {trained}.")


def _parallelism(spec: Spec) -> Iterator[Problem]:
    tensor, nodes = spec.parallelism.tensor, spec.parallelism.nodes or 1
    if nodes > 1 and tensor is None:
        yield Problem("spec.parallelism.tensor", "must be set when nodes is above 1", "Set it to the accelerators over all nodes.")
    if tensor is not None and tensor % nodes:
        yield Problem(
            "spec.parallelism.tensor", f"{tensor} is not a multiple of {nodes} nodes", "Use a multiple of spec.parallelism.nodes."
        )


def _extra_args(arguments: Sequence[str], owned_flags: Mapping[str, str]) -> Iterator[Problem]:
    for i, argument in enumerate(arguments):
        if flag := owned_flag(argument, owned_flags):
            name = argument.partition("=")[0]
            meaning = "is set by the operator" if flag == name.replace("_", "-") else f"abbreviates {flag}, which is set by the operator"
            yield Problem(f"spec.engine.extraArgs[{i}]", f"{name} {meaning}", f"Remove {name}: {owned_flags[flag]}.")


def _env(spec: Spec) -> Iterator[Problem]:
    names = [variable.name for variable in spec.engine.env]
    for i, variable in enumerate(spec.engine.env):
        field, source = f"spec.engine.env[{i}]", variable.value_from
        if variable.name in names[:i]:
            yield Problem(f"{field}.name", f"{variable.name} is given twice", "Remove one.")
        if variable.value is not None and source is not None:
            yield Problem(field, "has both value and valueFrom", "Keep one of them.")
        if (
            source is not None
            and sum(part is not None for part in (source.secret_key_ref, source.config_map_key_ref, source.field_ref)) != 1
        ):
            yield Problem(f"{field}.valueFrom", "must have exactly one source", "Keep one of secretKeyRef, configMapKeyRef, fieldRef.")


def _rollout(rollout: Rollout) -> Iterator[Problem]:
    if rollout.max_surge in (None, 0, "0%") and rollout.max_unavailable in (0, "0%"):
        yield Problem(
            "spec.rollout.maxUnavailable", "is 0 while maxSurge is 0 too, so nothing could ever be replaced", "Raise one of the two."
        )
    if rollout.window is not None:
        yield from window_problems(rollout.window)


def window_problems(window: RolloutWindow) -> Iterator[Problem]:
    """A schedule that is no cron expression or names no day there is (30 February), or a time zone nobody knows."""
    try:
        CronSim(window.schedule, _ANY_TIME)
    except CronSimError as error:
        part = str(error).removeprefix("Bad ")
        yield Problem(
            "spec.rollout.window.schedule",
            f"{window.schedule} is not a cron expression that ever comes true (look at its {part})",
            "Give minute, hour, day of month, month and day of week, for instance 0 22 * * 1-5.",
        )
    try:
        ZoneInfo(window.time_zone or "Etc/UTC")
    except (ZoneInfoNotFoundError, OSError, ValueError):  # a directory of the database, or a file that holds no time zone
        yield Problem(
            "spec.rollout.window.timeZone",
            f"{window.time_zone} is not a time zone the operator knows",
            "Use a name of the IANA time zone database, for instance Europe/Berlin; capitals matter.",
        )


def _storage(storage: Storage | None, roots: Sequence[str]) -> Iterator[Problem]:
    if storage is None:
        return
    if sum(part is not None for part in (storage.empty_dir, storage.persistent_volume_claim, storage.host_path, storage.image)) != 1:
        yield Problem("spec.storage", "must have exactly one field", "Keep one of emptyDir, persistentVolumeClaim, hostPath, image.")
    if storage.host_path is not None and not _below(storage.host_path.path, roots):
        where = f"Use a path below {' or '.join(roots)}" if roots else "Use emptyDir or persistentVolumeClaim"
        yield Problem(
            "spec.storage.hostPath.path",
            f"{storage.host_path.path} is not below a directory that the operator's settings allow",
            f"{where}, or have {storage.host_path.path} added to the chart's value settings.allowedHostPaths (without the chart "
            "DFLASH_ALLOWED_HOST_PATHS).",
        )


def _below(path: str, roots: Sequence[str]) -> bool:
    wanted = PurePosixPath(path)
    return ".." not in wanted.parts and any(wanted.is_relative_to(root) for root in roots)


def _metadata(spec: Spec) -> Iterator[Problem]:
    metadata = spec.pod_template.metadata
    if metadata is None:
        return
    for field, keys in (("labels", metadata.labels or {}), ("annotations", metadata.annotations or {})):
        for key in keys:
            if key.startswith(OWNED_PREFIX) or (field == "labels" and key in OWNED_LABELS):
                yield Problem(f"spec.podTemplate.metadata.{field}", f"{key} is the operator's", "Remove it or use another key.")


def _service(service: Service) -> Iterator[Problem]:
    for key in service.annotations or {}:
        if key.startswith(OWNED_PREFIX):
            yield Problem("spec.service.annotations", f"{key} is the operator's", "Remove it or use another key.")
