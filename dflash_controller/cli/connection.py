"""The cluster as kubectl would find it: kubeconfig files, context and namespace, and blocking calls to its API server."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config
from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

from dflash_controller import __version__
from dflash_controller.api.names import KIND
from dflash_controller.cli.failures import CLUSTER, USAGE, Failure
from dflash_controller.cli.where import Where
from dflash_controller.cluster import kinds
from dflash_controller.cluster.client import Client, Obj
from dflash_controller.cluster.errors import ApiError, Conflict, Forbidden, NotFound, Unavailable
from dflash_controller.cluster.kinds import Kind

FIELD_MANAGER = "kubectl-dflash"
CONNECTIONS = 8
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NO_RIGHT = re.compile(r'\b[Uu]ser "[^"]*" cannot ')
"""Tells a missing right from a quota, Pod Security or an admission policy, which answer 403, too."""
_NO_NAMESPACE = re.compile(r'namespaces "([^"]+)" not found')
_NAMESPACE = Kind("v1", "Namespace", "namespaces")
T = TypeVar("T")


class Cluster:
    """One context of a kubeconfig. ``with Cluster(where) as cluster`` closes its connections.

    Every method raises Failure with the status ``CLUSTER`` where the API server does not do what it is asked.
    """

    def __init__(self, where: Where) -> None:
        """Raises Failure if there is no usable kubeconfig."""
        self._runner = asyncio.Runner()
        configuration = Configuration()
        try:
            namespace = self._runner.run(_load(where, _files(where), configuration))
        except Failure:
            self._runner.close()
            raise
        except (ConfigException, yaml.YAMLError, AttributeError, OSError, KeyError, TypeError, ValueError) as error:
            self._runner.close()
            said = " ".join(str(error).split())
            raise Failure(f"the kubeconfig cannot be used: {said}", "See kubectl config view", status=CLUSTER) from error
        self.namespace: str = where.namespace or namespace or "default"
        self.server: str = configuration.host
        self._client = self._runner.run(_client(configuration, where.timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._runner.run(self._client.close())
        self._runner.close()

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Obj:
        """Returns an object of a namespace, by default the one chosen."""
        place = namespace or self.namespace
        return self._call(self._client.get(kind, place, name), f"{kind.name} {name} in namespace {place}")

    def find(self, kind: Kind, name: str, namespace: str | None) -> Obj | None:
        """Returns an object, or None if there is none. ``namespace`` is None for a cluster-scoped kind."""
        try:
            return self._runner.run(self._client.get(kind, namespace, name))
        except NotFound:
            return None
        except ApiError as error:
            raise self._failure(error, f"{kind.name} {name}") from error

    def deployment(self, name: str) -> Obj:
        """Returns the DFlashDeployment of this name. The Failure names the namespaces that have one, as far as they may be listed."""
        try:
            return self._runner.run(self._client.get(kinds.DFLASH_DEPLOYMENT, self.namespace, name))
        except ApiError as error:
            failure = self._failure(error, f"{KIND} {name} in namespace {self.namespace}")
            if isinstance(error, NotFound) and (remedy := self._elsewhere(name)):
                raise Failure(str(failure), remedy, status=CLUSTER) from error
            raise failure from error

    def no_namespace(self) -> bool:
        """Returns whether the namespace chosen does not exist; False if it may not be read."""
        try:
            return self.find(_NAMESPACE, self.namespace, None) is None
        except Failure:
            return False

    def _elsewhere(self, name: str) -> str:
        """Returns what to do about a DFlashDeployment that is not in the namespace chosen; empty if nothing is known."""
        try:
            found = self.objects(kinds.DFLASH_DEPLOYMENT, None, field_selector=f"metadata.name={name}")
        except Failure:
            found = []
        if found:
            there = " and ".join(sorted(item["metadata"]["namespace"] for item in found))
            return f"There is one in namespace {there}; name it with --namespace"
        return f"There is no namespace {self.namespace}" if self.no_namespace() else ""

    def objects(self, kind: Kind, namespace: str | None, *, selector: str | None = None, field_selector: str | None = None) -> list[Obj]:
        """Returns the objects of a namespace; None: of all namespaces, or of a cluster-scoped kind."""

        async def pages() -> list[Obj]:
            found: list[Obj] = []
            async for page, _ in self._client.pages(kind, namespace, selector=selector, field_selector=field_selector):
                found += page
            return found

        return self._call(pages(), kind.plural)

    def children(self, kind: Kind, deployment: str) -> list[Obj]:
        """Returns what belongs to a DFlashDeployment by its label."""
        return self.objects(kind, self.namespace, selector=kinds.selector_of(deployment))

    def patch(self, kind: Kind, name: str, patch: Mapping[str, Any]) -> Obj:
        """Sends a JSON merge patch as the field manager ``kubectl-dflash``."""
        return self._call(self._client.merge_patch(kind, self.namespace, name, patch), f"{kind.name} {name}")

    def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Obj:
        """Creates an object, such as a question about rights."""
        return self._call(self._client.create(kind, manifest), kind.name)

    def delete(self, kind: Kind, obj: Mapping[str, Any]) -> None:
        """Deletes this very object, unless it is gone already."""
        metadata = obj["metadata"]
        try:
            self._runner.run(self._client.delete(kind, metadata["namespace"], metadata["name"], uid=metadata["uid"]))
        except (NotFound, Conflict):
            return  # Another object of its name is not it.
        except ApiError as error:
            raise self._failure(error, f"{kind.name} {metadata['name']}") from error

    def served(self, kind: Kind) -> bool:
        """Returns whether the API server serves the kind."""
        return kind in self._call(self._client.served((kind,)), kind.name)

    def text(self, path: str, **query: Any) -> str:
        """Returns what the API server says at a path, as text."""
        return self._call(self._client.text(path, **query), path)

    def _call(self, call: Coroutine[Any, Any, T], what: str) -> T:
        try:
            return self._runner.run(call)
        except ApiError as error:
            raise self._failure(error, what) from error

    def _failure(self, error: ApiError, what: str) -> Failure:
        if isinstance(error, Unavailable) and error.code == 0:
            return Failure(f"the API server {self.server} does not answer ({error.message})", "Check kubectl cluster-info", status=CLUSTER)
        if isinstance(error, NotFound):
            if "could not find the requested resource" in error.message or "page not found" in error.message:
                known = " (is the CustomResourceDefinition installed? See kubectl dflash doctor)" if KIND in what else ""
                return Failure(f"{what}: the API server does not serve this kind{known}", status=CLUSTER)
            missing = _NO_NAMESPACE.match(error.message)
            return Failure(f"there is no namespace {missing[1]}" if missing else f"{what} does not exist", status=CLUSTER)
        if isinstance(error, Forbidden):
            if error.code == 403 and not _NO_RIGHT.search(error.message):
                return Failure(f"{what}: the API server refuses it: {error.message}", status=CLUSTER)
            return Failure(f"not allowed: {error.message}", "Ask for the right, or choose another --context", status=CLUSTER)
        return Failure(f"{what}: {error.message}", status=CLUSTER)


async def _client(configuration: Configuration, timeout_s: float) -> Client:
    return Client(
        configuration, connections=CONNECTIONS, total_s=timeout_s, user_agent=f"kubectl-dflash/{__version__}", field_manager=FIELD_MANAGER
    )


def _files(where: Where) -> list[str]:
    """Returns the kubeconfig files that exist; none in a pod that has only its service account. Raises Failure."""
    paths = where.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    existing = [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().is_file()]
    in_pod = os.environ.get("KUBERNETES_SERVICE_HOST") and not where.context and not where.kubeconfig
    if not existing and not in_pod:
        raise Failure(f"there is no kubeconfig at {paths}", "Set KUBECONFIG or --kubeconfig", status=CLUSTER)
    return existing


def _own_namespace() -> str | None:
    return _SERVICE_ACCOUNT.read_text(encoding="utf-8").strip() if _SERVICE_ACCOUNT.is_file() else None


async def _load(where: Where, files: Sequence[str], configuration: Configuration) -> str | None:
    """Fills the configuration. Returns the namespace of the context, or None if it names none."""
    if not files:
        load_incluster_config(client_configuration=configuration)
        return _own_namespace()
    merger = KubeConfigMerger(os.pathsep.join(files))
    merged = merger.config
    if merged is None or not merged.value.get("contexts"):
        raise Failure(f"{os.pathsep.join(files)} has no context", "Add one with kubectl config set-context", status=CLUSTER)
    known = [context.value["name"] if hasattr(context, "value") else context["name"] for context in merged.value["contexts"]]
    # As for kubectl, the first file that names one decides.
    currents = [merger.config_files[path].get("current-context") for path in merger.paths]
    name = where.context or next(filter(None, currents), None)
    if name not in known:
        said = f"there is no context {name}" if name else "the kubeconfig has no current context"
        raise Failure(said, f"Use one of {', '.join(sorted(known))}, with --context", status=USAGE if where.context else CLUSTER)
    loader = KubeConfigLoader(merged, active_context=name)
    await loader.load_and_set(configuration)
    context = loader.current_context["context"]
    return str(context["namespace"]) if "namespace" in context else None
