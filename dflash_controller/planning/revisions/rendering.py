"""Renders the workload of a revision, and tells what the pods of two revisions run differently.

A revision's pods are rendered once and stored, so two revisions may come from different releases of the operator. What differs between
their stored pods, although this release renders it alike for both, came with another release and not with a change of anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dflash_controller.api.parse import parse_spec
from dflash_controller.api.quantity import canonical_quantity
from dflash_controller.api.speculation import Speculation
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.engines.flags import Flag
from dflash_controller.engines.resolved import Resolved
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.render.merge import json_value, three_way
from dflash_controller.render.workload import workload

_RESOURCES = "resources."
Setting = tuple[str, str, str]
"""Role of the pod, container, and the setting's name: a flag, ``env NAME``, ``image``, ``command``, or a path below ``resources``."""


def render(
    name: str,
    namespace: str,
    revision: str,
    spec: Spec,
    resolved: Resolved,
    speculation: Speculation,
    host_path_roots: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the workload as this release renders it. Raises ValueError if the engine cannot be launched so."""
    engine = ENGINES[resolved.engine]
    launch = engine.launch(resolved.launch_request(speculation))
    return workload(name, namespace, revision, spec, resolved, launch, engine.probes(resolved.version), speculation, host_path_roots)


def with_speculation(
    stable: Revision, speculation: Speculation, revision: str, name: str, namespace: str, spec: Spec
) -> dict[str, Any] | None:
    """Returns the stored workload of stable with another speculation and nothing else changed. ``revision`` is the new hash.

    Returns None if this release cannot render stable, so that the difference is unknown. ``spec`` does not matter: both sides are rendered
    with it, and only their difference counts.
    """
    try:
        base = render(name, namespace, stable.hash, spec, stable.resolved, stable.speculation)
        changed = render(name, namespace, revision, spec, stable.resolved, speculation)
    except ValueError:
        return None
    merged: dict[str, Any] = three_way(base, changed, stable.workload)
    return merged


@dataclass(frozen=True, slots=True)
class PodDifference:
    """What the stored pods of two revisions run differently."""

    any: bool = False
    resources: bool = False
    """The containers ask for other resources."""
    unexplained: tuple[str, ...] | None = ()
    """Names of the settings that differ only because another release of the operator rendered one of them. None if that is unknown."""


def pod_difference(one: Revision, other: Revision) -> PodDifference:
    """Returns the difference between the stored pods of two revisions."""
    stored = _differing(one.workload, other.workload)
    if not stored:
        return PodDifference()
    resources = any(setting.startswith(_RESOURCES) for _, _, setting in stored)
    today = [_today(record) for record in (one, other)]
    if today[0] is None or today[1] is None:
        return PodDifference(any=True, resources=resources, unexplained=None)
    explained = _differing(today[0], today[1])
    return PodDifference(any=True, resources=resources, unexplained=tuple(sorted({setting for *_, setting in stored - explained})))


def _today(record: Revision) -> dict[str, Any] | None:
    """Returns the workload of a stored revision as this release would render it; None if it cannot."""
    spec = parse_spec({"spec": dict(record.inputs)})
    if not isinstance(spec, Spec):
        return None
    try:
        return render(record.name, "", record.hash, spec, record.resolved, record.speculation)
    except ValueError:
        return None


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> frozenset[Setting]:
    before, after = dict(_settings(one)), dict(_settings(other))
    return frozenset(setting for setting in {*before, *after} if before.get(setting) != after.get(setting))


def _settings(manifest: Mapping[str, Any]) -> Iterator[tuple[Setting, tuple[str, ...]]]:
    """Yields what decides how the containers of a workload perform, each setting once, with its values."""
    spec = manifest.get("spec") or {}
    group = spec.get("leaderWorkerTemplate") or {}
    templates = {"engine": spec.get("template") or group.get("leaderTemplate"), "worker": group.get("workerTemplate")}
    for role, template in templates.items():
        for container in (template or {}).get("spec", {}).get("containers", ()):
            found: dict[str, list[str]] = {}
            for setting, value in _of_container(container):
                found.setdefault(setting, []).append(value)
            yield from (((role, container["name"], setting), tuple(values)) for setting, values in found.items())


def _of_container(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "image", str(container.get("image"))
    yield "command", json.dumps(container.get("command"))
    for token in container.get("args", ()):
        yield from _of_flag(token)
    for variable in container.get("env", ()):
        yield f"env {variable['name']}", _of_variable(variable)
    for part, quantities in container.get("resources", {}).items():
        for resource, quantity in quantities.items() if isinstance(quantities, Mapping) else ():
            yield f"{_RESOURCES}{part}.{resource}", _of_quantity(quantity)


@lru_cache(maxsize=4096)
def _of_flag(token: str) -> tuple[tuple[str, str], ...]:
    """Returns a flag with its value. A JSON object makes one setting per key, so that one key of it does not explain another.

    The same command lines are compared in each reconcile.
    """
    try:
        flag = Flag.parse(token)
    except ValueError:
        return (("arguments", token),)
    value = json_value(token)
    if value is None:
        return ((flag.name, "" if flag.value is None else f"={flag.value}"),)
    return tuple((f"{flag.name}.{key}", json.dumps(inner, sort_keys=True)) for key, inner in value.items())


def _of_quantity(quantity: Any) -> str:
    """Returns one spelling per quantity. What a newer operator stored may be none; it is compared as it is."""
    try:
        return canonical_quantity(quantity)
    except ValueError:
        return str(quantity)


def _of_variable(variable: Mapping[str, Any]) -> str:
    """Returns the value of a variable, or its source without the defaults that the API server adds."""
    source = variable.get("valueFrom")
    if source is None:
        return f"={variable.get('value') or ''}"
    defaults = {"apiVersion": "v1", "divisor": "0"}
    plain = {
        kind: {key: value for key, value in reference.items() if defaults.get(key) != value}
        for kind, reference in source.items()
        if isinstance(reference, Mapping)
    }
    return json.dumps(plain, sort_keys=True)
