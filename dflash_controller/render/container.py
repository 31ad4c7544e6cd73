"""Renders the engine container: command line, environment, probes, resources, security."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dflash_controller.api.names import ENGINE_CONTAINER, HTTP_PORT_NAME, ROLE_ENGINE
from dflash_controller.api.types import Spec
from dflash_controller.engines.protocol import Launch, Probes
from dflash_controller.engines.resolve import Resolved
from dflash_controller.render.compact import as_manifest
from dflash_controller.render.startup import PROBE_PERIOD_S, startup_failure_threshold
from dflash_controller.render.volumes import Mount

READINESS = {"periodSeconds": 10, "failureThreshold": 3}
"""Three failures, because an engine under load can answer late. The period is shorter than the preStop sleep."""
LIVENESS = {"periodSeconds": 30, "failureThreshold": 10}
"""Five minutes without an answer: as long as SGLang's own watchdog waits. A busy engine must not be killed."""

WAIT_FOR_LEADER = """\
import os, socket, sys, time
failed = 0
while failed < 3:
    try:
        socket.create_connection((os.environ["LWS_LEADER_ADDRESS"], int(sys.argv[1])), 5).close()
        failed = 0
    except OSError:
        failed += 1
    time.sleep(1)
"""
"""Ends once the leader's process has ended, whose port is the argument. Three attempts: a name may fail to resolve for a moment."""


def engine_container(role: str, spec: Spec, resolved: Resolved, launch: Launch, probes: Probes, mounts: Sequence[Mount]) -> dict[str, Any]:
    """Returns the container of one pod; ``role`` is engine (rank 0) or worker (the other ranks of a multi-node replica)."""
    leads = role == ROLE_ENGINE
    return {
        "name": ENGINE_CONTAINER,
        "image": resolved.image,
        "command": list(launch.command),
        "args": list(launch.args if leads else launch.worker_args),
        "env": environment(spec, launch.env, mounts, launch.pod_fields),
        "ports": _ports(resolved, answers=leads or probes.worker is not None),
        **(_engine_probes(resolved, probes) if leads else _worker_probes(probes)),
        "lifecycle": {"preStop": _leader_pre_stop(resolved) if leads else _worker_pre_stop(launch)},
        "resources": _resources(spec, resolved),
        "securityContext": _security(spec),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount.volume_mount() for mount in mounts],
    }


def environment(
    spec: Spec, fixed: Mapping[str, str], mounts: Sequence[Mount], pod_fields: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Returns our variables (``fixed``, those of the mounts, and fields of the pod) by name, then the user's as written.

    The user's replace ours and may refer to them as ``$(NAME)``.
    """
    ours: dict[str, dict[str, Any]] = {name: {"value": value} for name, value in fixed.items()}
    for mount in mounts:
        ours |= {name: {"value": value} for name, value in mount.env.items()}
    ours |= {name: {"valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in (pod_fields or {}).items()}
    users = [as_manifest(variable) for variable in spec.engine.env]
    taken = {variable["name"] for variable in users}
    return [{"name": name, **ours[name]} for name in sorted(ours) if name not in taken] + users


def _ports(resolved: Resolved, *, answers: bool) -> list[dict[str, Any]]:
    return [{"name": HTTP_PORT_NAME, "containerPort": resolved.port, "protocol": "TCP"}] if answers else []


def _get(path: str, probes: Probes, **settings: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": HTTP_PORT_NAME}, "timeoutSeconds": probes.timeout_s, **settings}


def _engine_probes(resolved: Resolved, probes: Probes) -> dict[str, Any]:
    startup = {"periodSeconds": PROBE_PERIOD_S, "failureThreshold": startup_failure_threshold(resolved)}
    return {
        "startupProbe": _get(probes.startup, probes, **startup),
        "readinessProbe": _get(probes.readiness, probes, **READINESS),
        "livenessProbe": _get(probes.liveness, probes, **LIVENESS),
    }


def _worker_probes(probes: Probes) -> dict[str, Any]:
    """Returns a readiness probe if the rank answers at all. No other probe is needed: a worker that dies restarts its whole group."""
    return {"readinessProbe": _get(probes.worker, probes, **READINESS)} if probes.worker else {}


def _leader_pre_stop(resolved: Resolved) -> dict[str, Any]:
    """Returns a pause in which endpoints forget the pod while the engine still answers.

    After SIGTERM SGLang keeps answering until it is drained, while vLLM closes its port within a quarter of a second (measured with 0.26.0)
    and only finishes what it has begun.
    """
    return {"sleep": {"seconds": resolved.pre_stop_s}}


def _worker_pre_stop(launch: Launch) -> dict[str, Any] | None:
    """Returns a pause until the leader has ended: without this rank it could not finish what it has begun.

    Whatever deletes a worker has its leader deleted too, so both are told to stop at the same time.
    """
    if launch.worker_outlives is None:
        return None
    return {"exec": {"command": ["python3", "-c", WAIT_FOR_LEADER, str(launch.worker_outlives)]}}


def _resources(spec: Spec, resolved: Resolved) -> dict[str, Any]:
    written = as_manifest(spec.pod_template.resources)
    requests, limits = ({name: str(quantity) for name, quantity in written.get(part, {}).items()} for part in ("requests", "limits"))
    limits[resolved.gpu_resource] = str(resolved.gpus_per_pod)
    if rdma := spec.accelerator.rdma:
        limits[rdma.resource] = str(rdma.count)
    return {"requests": requests, "limits": limits}


def _security(spec: Spec) -> dict[str, Any]:
    """Returns the security context. Only RDMA needs a capability, IPC_LOCK, because it pins the memory it transfers."""
    pins = spec.accelerator.rdma is not None
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"] if pins else None},
        "readOnlyRootFilesystem": spec.pod_template.read_only_root_filesystem or None,
    }
