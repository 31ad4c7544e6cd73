"""The objects that the operator makes of a DFlashDeployment, as it would create them and as it stored them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api import defaults
from dflash_controller.api.inputs import revision_inputs
from dflash_controller.api.types import Spec
from dflash_controller.cli.flags import Explained, Sources
from dflash_controller.cli.resolution import Made
from dflash_controller.engines.resolved import OperatorDefaults, Resolved
from dflash_controller.planning.replicas.count import template_of
from dflash_controller.planning.revisions.rendering import render
from dflash_controller.planning.revisions.revision import Origin, Revision, revision_hash
from dflash_controller.render.disruption_budget import pod_disruption_budget
from dflash_controller.render.monitor import pod_monitor
from dflash_controller.render.network_policy import network_policy
from dflash_controller.render.service import service
from dflash_controller.render.service_account import service_account


@dataclass(frozen=True, slots=True)
class Container:
    """The engine container of one role, with every argument and variable explained."""

    role: str
    image: str
    command: tuple[str, ...]
    arguments: tuple[Explained, ...]
    variables: tuple[Explained, ...]
    left_out: tuple[Explained, ...]
    env: tuple[Mapping[str, Any], ...] = ()
    """The variables as the pod template has them."""

    @property
    def argv(self) -> list[str]:
        """The whole command line."""
        return [*self.command, *(explained.argument for explained in self.arguments)]

    def to_json(self) -> dict[str, Any]:
        def rows(found: tuple[Explained, ...]) -> list[dict[str, str]]:
            return [{"argument": item.argument, "source": item.source, "reason": item.reason} for item in found]

        return {
            "role": self.role,
            "image": self.image,
            "argv": self.argv,
            "arguments": rows(self.arguments),
            "environment": rows(self.variables),
            "leftOut": rows(self.left_out),
        }


@dataclass(frozen=True, slots=True)
class Rendered:
    """One revision with its objects, the workload last."""

    revision: str
    block: str
    engine: str
    objects: tuple[Mapping[str, Any], ...]
    containers: tuple[Container, ...]

    @property
    def workload(self) -> Mapping[str, Any]:
        return self.objects[-1]


def of_spec(made: Made, name: str, namespace: str, operator: OperatorDefaults) -> Rendered:
    """Returns what the operator would create for a deployment that it sees for the first time."""
    inputs = revision_inputs(made.spec)
    revision = revision_hash(inputs, made.speculation, ())
    workload = render(name, namespace, revision, made.spec, made.resolved, made.speculation, operator.host_path_roots)
    sources = Sources(inputs, made.spec.block_size, made.resolved, made.speculation)
    return Rendered(
        f"{name}-{revision}",
        made.speculation.label(),
        f"{made.resolved.engine} {made.resolved.version}",
        (*_shared(name, namespace, made.spec, made.resolved), _scaled(workload, defaults.replicas(made.spec))),
        tuple(_containers(workload, sources)),
    )


def of_revision(record: Revision, spec: Spec, name: str, namespace: str) -> Rendered:
    """Returns what the operator stored with a revision: the pods are exactly these, whatever this release would render."""
    tuned = record.origin == Origin.TUNER
    sources = Sources(record.inputs, record.block_size_as_written, record.resolved, record.speculation, tuned=tuned)
    return Rendered(
        record.name,
        record.speculation.label(),
        f"{record.resolved.engine} {record.resolved.version}",
        (
            *_shared(name, namespace, spec, record.resolved),
            _scaled(record.workload, defaults.replicas(spec)),
        ),
        tuple(_containers(record.workload, sources)),
    )


def pod_templates(workload: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the pod templates of a workload by role."""
    worker = (workload["spec"].get("leaderWorkerTemplate") or {}).get("workerTemplate")
    found = {"engine": template_of(workload), "worker": worker}
    return {role: template for role, template in found.items() if template}


def _containers(workload: Mapping[str, Any], sources: Sources) -> Iterator[Container]:
    for role, template in pod_templates(workload).items():
        for container in template["spec"]["containers"]:
            arguments = tuple(container.get("args") or ())
            yield Container(
                role,
                container["image"],
                tuple(container.get("command") or ()),
                tuple(sources.argument(token) for token in arguments),
                tuple(sources.variable(variable) for variable in container.get("env") or ()),
                tuple(sources.left_out(arguments)),
                tuple(container.get("env") or ()),
            )


def _shared(name: str, namespace: str, spec: Spec, resolved: Resolved) -> list[Mapping[str, Any]]:
    return [
        service_account(name, namespace),
        service(name, namespace, spec, resolved.port),
        pod_disruption_budget(name, namespace),
        network_policy(name, namespace, multi_node=resolved.nodes > 1, fetches=bool(resolved.fetch_image)),
        pod_monitor(name, namespace),
    ]


def _scaled(workload: Mapping[str, Any], replicas: int) -> Mapping[str, Any]:
    return {**workload, "spec": {"replicas": replicas, **workload["spec"]}}
