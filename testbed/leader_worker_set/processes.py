"""LeaderWorkerSet in a cluster: definition, webhooks, and the processes that act on it."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from testbed import binaries
from testbed.cluster import Cluster
from testbed.leader_worker_set import objects
from testbed.processes import RecordedProcess
from testbed.waiting import wait_until

ROOT = Path(__file__).parents[2]
STAND_IN_CRD = ROOT / "testbed" / "data" / "leaderworkerset-crd.yaml"
MANAGER = "lws-manager"
_MODULE = "sigs.k8s.io/lws"
_CONFIG_VARIABLE = "DFLASH_TESTBED_LWS_CONFIG"
_WEBHOOKS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_WEBHOOK_LABEL = {"testbed": "leader-worker-set"}
_IS_POD_OF_SET = {"matchExpressions": [{"key": objects.NAME, "operator": "Exists"}]}


class LeaderWorkerSets:
    """LeaderWorkerSet in a cluster during its ``with`` block, by the stand-in or with ``real`` by the real controller.

    Leaders of simulated pods are kept from being Ready before their workers, unless ``containers`` says that all pods are containers.
    The real one is built on first use. ``DFLASH_TESTBED_LWS_MANAGER`` names another one, and ``DFLASH_TESTBED_LWS_CONFIG`` the ``config``
    folder of its release.
    """

    def __init__(self, cluster: Cluster, *, real: bool = False, containers: bool = False) -> None:
        self._cluster = cluster
        self._real = real
        self._helped = not (real and containers)
        self._pki = cluster.workspace.control_plane / "pki"
        self._helper = cluster.workspace.process("leader-worker-set")
        self._manager = cluster.workspace.process(MANAGER)
        self._crds: list[str] = []
        self.log = cluster.directory / "leader-worker-set.log"
        self.manager_log = cluster.directory / f"{MANAGER}.log"

    def start(self) -> LeaderWorkerSets:
        """Starts everything and waits until LeaderWorkerSets are acted upon."""
        config = _config_folder() if self._real else None
        definitions = list(_documents(config / "crd" / "bases" if config else STAND_IN_CRD))
        self._crds = [item["metadata"]["name"] for item in definitions]
        self._cluster.apply_yaml(definitions)
        self._cluster.wait_for_crds()
        # The garbage collector looks for new kinds every 30 s, but also when it starts.
        controllers = self._cluster.control_plane
        controllers.process("kube-controller-manager").stop(signal.SIGKILL)
        controllers.start("kube-controller-manager")
        if config is not None:
            self._start_manager(config)
        if self._helped:
            self._start_helper()
        return self

    def stop(self) -> None:
        """Removes all of it, and every LeaderWorkerSet."""
        for kind in _WEBHOOKS:
            selector = ",".join(f"{name}%3D{value}" for name, value in _WEBHOOK_LABEL.items())
            self._cluster.api.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}?labelSelector={selector}")
        self._manager.stop()
        self._helper.stop()
        for name in self._crds:
            self._cluster.kubectl("delete", "crd", name, "--ignore-not-found")

    def __enter__(self) -> LeaderWorkerSets:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _start_helper(self) -> None:
        self.log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "testbed.leader_worker_set", f"--kubeconfig={self._cluster.admin_kubeconfig}"]
        command += [f"--certificate={self._pki / 'admin.crt'}", f"--key={self._pki / 'admin.key'}"]
        command += ["--without-controller"] if self._real else []
        self._helper.start(command, self.log, {**os.environ, "PYTHONPATH": str(ROOT)})
        url = wait_until(self._said, f"the process for LeaderWorkerSets (see {self.log})")
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        webhook = {"name": "pods.leader-worker-set.testbed", "rules": [rule], "objectSelector": _IS_POD_OF_SET, "sideEffects": "None"}
        webhook |= {"admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "clientConfig": self._client_config(url)}
        self._apply_webhooks([{"kind": "MutatingWebhookConfiguration", "metadata": {"name": "testbed"}, "webhooks": [webhook]}])

    def _said(self) -> str | None:
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else ():
            if line.startswith('{"event": "ready"'):
                return str(json.loads(line)["webhook"])
        _check_runs(self._helper, self.log)
        return None

    def _start_manager(self, config: Path) -> None:
        directory, port = self._cluster.directory / MANAGER, _free_port()
        directory.mkdir(exist_ok=True)
        for name, source in {"tls.crt": "admin.crt", "tls.key": "admin.key"}.items():
            (directory / name).unlink(missing_ok=True)
            (directory / name).symlink_to(self._pki / source)
        settings = {
            "apiVersion": "config.lws.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(directory)},
        }
        (directory / "config.yaml").write_text(yaml.safe_dump(settings))
        self.manager_log.unlink(missing_ok=True)
        command = [str(binaries.path_of(MANAGER)), f"--config={directory / 'config.yaml'}"]
        self._manager.start(command, self.manager_log, {**os.environ, "KUBECONFIG": str(self._cluster.admin_kubeconfig)})
        wait_until(lambda: self._listens(port), f"the LeaderWorkerSet controller (see {self.manager_log})", 60)
        self._apply_webhooks(list(self._real_webhooks(config, f"https://127.0.0.1:{port}")))

    def _listens(self, port: int) -> bool:
        _check_runs(self._manager, self.manager_log)
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _real_webhooks(self, config: Path, server: str) -> Iterator[dict[str, Any]]:
        for item in _documents(config / "webhook" / "manifests.yaml"):
            item["metadata"]["name"] = f"lws-{item['metadata']['name']}"
            for webhook in item["webhooks"]:
                webhook["clientConfig"] = self._client_config(server + webhook["clientConfig"]["service"]["path"])
                if any("pods" in rule["resources"] for rule in webhook["rules"]):
                    webhook["objectSelector"] = _IS_POD_OF_SET  # as its kustomization has it
            yield item

    def _client_config(self, url: str) -> dict[str, str]:
        return {"url": url, "caBundle": base64.b64encode((self._pki / "ca.crt").read_bytes()).decode()}

    def _apply_webhooks(self, configurations: list[dict[str, Any]]) -> None:
        for item in configurations:
            item["apiVersion"] = "admissionregistration.k8s.io/v1"
            item["metadata"]["labels"] = _WEBHOOK_LABEL
        self._cluster.apply_yaml(configurations)


def _config_folder() -> Path:
    given = os.environ.get(_CONFIG_VARIABLE)
    if not given:
        return binaries.source_of(MANAGER, _MODULE) / "config"
    if not (Path(given) / "crd" / "bases").is_dir():
        raise binaries.BinaryError(f"{_CONFIG_VARIABLE}={given} is not the config folder of a LeaderWorkerSet release")
    return Path(given)


def _documents(source: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(source.glob("*.yaml")) if source.is_dir() else (source,):
        yield from (item for item in yaml.safe_load_all(file.read_text()) if item)


def _check_runs(process: RecordedProcess, log: Path) -> None:
    if process.pid() is None:
        raise RuntimeError(f"{process.pid_file.stem} ended:\n{log.read_text(errors='replace')[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
