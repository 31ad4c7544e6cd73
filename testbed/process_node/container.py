"""What a pod's container is to run: command line, environment, mounts, ports and preStop hook, resolved as the kubelet resolves them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.nodes import GPU_RESOURCE
from testbed.process_node.probes import ProbeSpec, UnsupportedProbe, probe_of
from testbed.simulator.launch import expand

ReadKey = Callable[[str, str, str], str | None]
"""Reads the value of a key: kind (``secrets`` or ``configmaps``), name of the object, key. None if there is none."""

_OWN_MOUNTS = ("/dev/shm",)
"""Mounts that a process shares with the machine."""


class ConfigError(ValueError):
    """The container cannot be made; the kubelet calls it CreateContainerConfigError."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container that can be started."""

    name: str
    image: str
    command: tuple[str, ...]
    """Command and arguments, with ``$(NAME)`` expanded."""
    env: Mapping[str, str]
    gpus: int
    startup: ProbeSpec | None
    readiness: ProbeSpec | None
    liveness: ProbeSpec | None
    pre_stop: Mapping[str, Any]
    log_on_failure: bool
    """Whether the last lines of the log are the termination message of a failure."""


def containers_of(pod: Mapping[str, Any], address: str, host_address: str, read: ReadKey) -> list[Container]:
    """Returns the containers of a pod that will have ``address``. Raises ConfigError."""
    spec = pod["spec"]
    if spec.get("initContainers"):
        raise ConfigError("a process node has no init containers")
    known = {"status.podIP": address, "status.podIPs": address, "status.hostIP": host_address}
    return [_container(pod, container, known, read) for container in spec["containers"]]


def _container(pod: Mapping[str, Any], container: Mapping[str, Any], known: Mapping[str, str], read: ReadKey) -> Container:
    for mount in container.get("volumeMounts") or ():
        _check_mount(pod, mount)
    env = environment(pod, container, known, read)
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    try:
        startup, readiness, liveness = (probe_of(container, f"{kind}Probe") for kind in ("startup", "readiness", "liveness"))
    except UnsupportedProbe as error:
        raise ConfigError(str(error)) from None
    return Container(
        name=container["name"],
        image=container.get("image", ""),
        command=tuple(expand(word, env) for word in words),
        env=env,
        gpus=int((container.get("resources") or {}).get("limits", {}).get(GPU_RESOURCE, 0)),
        startup=startup,
        readiness=readiness,
        liveness=liveness,
        pre_stop=(container.get("lifecycle") or {}).get("preStop") or {},
        log_on_failure=container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
    )


def _check_mount(pod: Mapping[str, Any], mount: Mapping[str, Any]) -> None:
    """A process sees the file system of the machine. Raises ConfigError for a mount that would be something else there."""
    path = mount["mountPath"]
    volume: Mapping[str, Any] = next((one for one in pod["spec"].get("volumes") or () if one["name"] == mount["name"]), {})
    source = str((volume.get("hostPath") or {}).get("path", ""))
    if mount.get("subPath"):
        source = f"{source.rstrip('/')}/{mount['subPath']}"
    # Nothing on a process node uses the API with the pod's own account.
    if path not in _OWN_MOUNTS and source.rstrip("/") != path.rstrip("/") and not path.startswith("/var/run/secrets/kubernetes.io/"):
        raise ConfigError(f"a process cannot have {mount['name']} at {path}: only a hostPath of that very path")


def environment(pod: Mapping[str, Any], container: Mapping[str, Any], known: Mapping[str, str], read: ReadKey) -> dict[str, str]:
    """Returns the variables of a container. ``known`` has fields of the status that are decided before it starts. Raises ConfigError."""
    env: dict[str, str] = {}
    for entry in container.get("env") or ():
        value = expand(entry["value"], env) if entry.get("value") is not None else None
        if source := entry.get("valueFrom"):
            value = _from(pod, source, known, read)
        elif value is None:
            value = ""
        if value is not None:
            env[entry["name"]] = value
    return env


def _from(pod: Mapping[str, Any], source: Mapping[str, Any], known: Mapping[str, str], read: ReadKey) -> str | None:
    if field := source.get("fieldRef"):
        path = field["fieldPath"]
        return known[path] if path in known else _field(pod, path)
    for name, kind in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if reference := source.get(name):
            value = read(kind, reference["name"], reference["key"])
            if value is None and not reference.get("optional"):
                raise ConfigError(f"there is no key {reference['key']} in {kind.removesuffix('s')} {reference['name']}")
            return value
    raise ConfigError(f"valueFrom with {', '.join(source)} is not supported")


def _field(pod: Mapping[str, Any], path: str) -> str:
    """Returns a field for the downward API: ``metadata.labels['x']`` and ``metadata.annotations['x']``, or a plain path."""
    indexed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    value: Any = pod
    for part in ("metadata", indexed[1], indexed[2]) if indexed else path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


def engine_of(image: str, command: Sequence[str]) -> str:
    """Returns sglang or vllm, by the name of the image or the command. Raises ConfigError."""
    repository = image.rpartition(":")[0] or image
    text = " ".join(command[:4])
    for engine in ("sglang", "vllm"):
        if engine in repository.lower() or engine in text:
            return engine
    raise ConfigError(f"neither image {image!r} nor command {text!r} is of an engine")
