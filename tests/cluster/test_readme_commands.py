"""The commands that a stranger types, from the README's section "Install" and the page it leads to, typed one by one into a shell.

The cluster is fresh. What no test bed has is arranged beside the commands, and nothing in them is replaced:

- No image is pulled: kwok plays the operator's pods (and that of ``helm test``), and beside them the operator runs as a process, under
  their ServiceAccount and with the settings of their Deployment.
- kwok's kubelet forwards ports to where the test says: of an engine pod to its simulated engine, of the pod behind the Service
  ``prometheus`` to a real Prometheus.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testbed import binaries
from testbed.api import ApiError
from testbed.cluster import Cluster
from testbed.operator_process import NAMESPACE, ROOT, OperatorProcess
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until
from tests.support.shell import Answer, Shell

pytestmark = pytest.mark.long

SECTIONS = ((ROOT / "README.md", "Install"), (ROOT / "docs" / "how-to" / "install.md", "Check the installation"))
"""Page and heading, in the order in which they are followed, in one shell."""
RULES = ROOT / "charts" / "dflash-operator" / "files" / "rules"
RULE_FILE = ROOT / "charts" / "dflash-operator" / "files" / "rules" / "dflash.rules.yaml"
PROMETHEUS_URL = "http://prometheus.monitoring:9090"
"""As the pages have it."""
PACE = {"scrape_seconds": "1", "metrics_window_seconds": "30", "log_format": "text"}
"""A stranger waits half a minute for new metrics."""
COMMAND_SECONDS = 150.0
FIGURE_SECONDS = 90.0


def blocks(page: Path, heading: str) -> list[str]:
    """The ``bash`` blocks of a section, in order."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section, f"{page} has no section {heading}"
    found = re.findall(r"^```bash\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no command in the section {heading}"
    return found


def commands() -> list[str]:
    """Of all sections, in order; a line that ends with a backslash goes on."""
    lines = [line for page, heading in SECTIONS for block in blocks(page, heading) for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


# The stage


PORT_FORWARDS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "portforwards.kwok.x-k8s.io"},
    "spec": {
        "group": "kwok.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "PortForward", "listKind": "PortForwardList", "plural": "portforwards", "singular": "portforward"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""Where kwok reads to what address a pod's ports are forwarded."""
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def let_ports_be_forwarded(cluster: Cluster) -> None:
    """Start kwok anew as one that reads PortForward objects. No pod exists yet, so no address is given twice."""
    cluster.apply_yaml(PORT_FORWARDS)
    cluster.wait_for_crds()
    plane = cluster.control_plane
    command = [f"{word},PortForward" if word.startswith("--enable-crds=") else word for word in plane.components()["kwok-controller"]]
    assert any(word.endswith(",PortForward") for word in command), command
    kwok = plane.process("kwok-controller")
    kwok.stop(signal.SIGKILL)
    # It would leave each node alone until the lease of the one before runs out, after minutes.
    cluster.api.delete(NODE_LEASES)
    kwok.start(command, plane.audit_log.with_name("kwok-controller.log"))
    wait_until(lambda: len(cluster.api.get(NODE_LEASES)["items"]) == len(cluster.ready_nodes()), "kwok to play every node")


def forward(cluster: Cluster, namespace: str, pod: str, port: int, address: str, target: int) -> None:
    cluster.apply_yaml(
        {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "PortForward",
            "metadata": {"name": pod, "namespace": namespace},
            "spec": {"forwards": [{"ports": [port], "target": {"address": address, "port": target}}]},
        }
    )


class Stage:
    """A cluster in which the commands can be followed."""

    def __init__(self, cluster: Cluster, prometheus: Prometheus, exits: ExitStack) -> None:
        self.cluster = cluster
        self._prometheus = prometheus
        self._exits = exits
        self._operator: OperatorProcess | None = None
        self._forwarded: set[str] = set()

    def arrange(self) -> None:
        """What the cluster would have done by itself since the last command: run the operator's image, open engines to forwarding."""
        if self._operator is None and (deployment := self._installed()):
            self._operator = self._start(deployment)
        for pod in self.cluster.api.get("/api/v1/pods?labelSelector=serving.dflash.io%2Frole%3Dengine")["items"]:
            name, address = pod["metadata"]["name"], pod["status"].get("podIP")
            if address and name not in self._forwarded:
                for port in pod["spec"]["containers"][0]["ports"]:
                    forward(self.cluster, pod["metadata"]["namespace"], name, port["containerPort"], address, port["containerPort"])
                self._forwarded.add(name)

    def _installed(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self.cluster.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/dflash-operator")
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found

    def _start(self, deployment: dict[str, Any]) -> OperatorProcess:
        """The operator, with the settings that its pods have but for its own address, that of Prometheus, and the pace."""
        variables = {
            item["name"]: item["value"] for item in deployment["spec"]["template"]["spec"]["containers"][0]["env"] if "value" in item
        }
        settings = {name.removeprefix("DFLASH_").lower(): value for name, value in variables.items() if name.startswith("DFLASH_")}
        assert settings.pop("prometheus_url") == PROMETHEUS_URL
        settings = {name: value for name, value in settings.items() if name not in ("http_host", "http_port")}
        operator = OperatorProcess(self.cluster, {**settings, **PACE, "prometheus_url": self._prometheus.url})
        self._exits.callback(operator.kill)
        operator.start().wait_to_lead()
        self._prometheus.scrape(operator.url, namespace=NAMESPACE, pod=operator.name)
        return operator


def put_prometheus_behind_a_service(cluster: Cluster, prometheus: Prometheus) -> None:
    namespace, name, port = "monitoring", "prometheus", 9090
    cluster.kubectl("create", "namespace", namespace)
    cluster.wait_for_service_account(namespace)
    labels = {"app": name}
    container = {"name": name, "image": name, "ports": [{"name": "web", "containerPort": port}]}
    cluster.apply_yaml(
        [
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"selector": labels, "ports": [{"port": port, "targetPort": "web"}]},
            },
        ],
        namespace,
    )
    forward(cluster, namespace, name, port, "127.0.0.1", int(prometheus.url.rpartition(":")[2]))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A cluster of its own: the session's has the definition already, and its kwok forwards no port."""
    with ExitStack() as exits:
        cluster = exits.enter_context(Cluster())
        let_ports_be_forwarded(cluster)
        exits.enter_context(SimulatorProcess(cluster))
        prometheus = exits.enter_context(Prometheus(cluster, scrape_interval_s=1.0, rule_files=sorted(RULES.glob("*.yaml"))))
        put_prometheus_behind_a_service(cluster, prometheus)
        yield Stage(cluster, prometheus, exits)


@pytest.fixture
def shell(stage: Stage, tmp_path: Path) -> Iterator[Shell]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("helm", "kubectl"):
        (programs / name).symlink_to(binaries.path_of(name))
    home = stage.cluster.directory
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(stage.cluster.admin_kubeconfig),
        "KUBECACHEDIR": str(home / "kubectl-cache"),
        "KUBERC": "off",
        **{f"HELM_{kind}_HOME": str(home / "helm" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
    }
    running = Shell(tmp_path, environment, ROOT)
    yield running
    running.close()


# What a stranger sees


def tokens_arrived(answer: Answer) -> bool:
    events = [line.removeprefix("data: ") for line in answer.output.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [choice["delta"].get("content") for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert len([piece for piece in pieces if piece]) > 3, answer.output
    return True


def metrics_are_shown(answer: Answer) -> bool:
    head, row = answer.output.splitlines()[:2]
    starts = [match.start() for match in re.finditer(r"\S+", head)]
    shown = {head[a:b].strip(): row[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)}
    assert (shown["NAME"], shown["READY"], shown["REPLICAS"]) == ("qwen", "True", "2/2"), answer.output
    return bool(shown["ACCEPTANCE"] and shown["TOKENS/S"]) and 1 < float(shown["ACCEPTANCE"]) <= 16 and float(shown["TOKENS/S"]) > 0


def series_has_a_value(answer: Answer) -> bool:
    told = json.loads(answer.output)
    assert told["status"] == "success", told
    return any(one["metric"]["deployment"] == "qwen" and float(one["value"][1]) > 0 for one in told["data"]["result"])


def says(text: str) -> Callable[[Answer], bool]:
    return lambda answer: text in answer.output


# By what a command holds: whether its answer is what the page promises. What is False may come true when the command is repeated, as the
# page says of metrics.
PROMISES: dict[str, Callable[[Answer], bool]] = {
    "helm install dflash-operator": says("STATUS: deployed"),
    "rollout status deployment/dflash-operator": says("successfully rolled out"),
    "helm test dflash-operator": says("Phase:          Succeeded"),
    "kubectl apply -f examples/": says("dflashdeployment.serving.dflash.io/qwen created"),
    "kubectl wait --for=condition=Ready dfd/qwen": says("condition met"),
    '"stream": true': tokens_arrived,
    "kubectl get dfd qwen -o wide": metrics_are_shown,
    "dflash:deployment_generated_tokens:rate2m": series_has_a_value,
    "dflash:deployment_acceptance_length": series_has_a_value,
    "kubectl delete -f examples/": says('"qwen" deleted'),
    "helm uninstall dflash-operator": says('release "dflash-operator" uninstalled'),
}
REPEATED = ("kubectl get dfd", "/api/v1/query")
"""Commands that only look."""


def type_and_check(shell: Shell, command: str, promise: Callable[[Answer], bool]) -> None:
    answers: list[Answer] = []

    def kept() -> bool:
        answers.append(shell.type(command, COMMAND_SECONDS))
        return promise(answers[-1])

    failure_threshold = FIGURE_SECONDS if any(word in command for word in REPEATED) else 0.0
    try:
        wait_until(kept, "", failure_threshold, 0.5)
    except TimeoutError:
        pytest.fail(f"{command}\nanswered, {len(answers)} times:\n{answers[-1].output}\n{answers[-1].errors}")


def free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_stranger_can_follow_the_pages(stage: Stage, shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    typed = commands()
    ports = [int(port) for command in typed for port in re.findall(r"port-forward \S+ (\d+)", command)]
    assert len(ports) == 2
    assert [port for port in ports if not free(port)] == [], "ports that the pages forward are in use on this machine"
    for promise in PROMISES:
        assert len([command for command in typed if promise in command]) == 1, promise
    for command in typed:
        stage.arrange()
        type_and_check(shell, command, next((PROMISES[part] for part in PROMISES if part in command), lambda answer: True))
        with capsys.disabled():
            print(f"\n  {command}", end="")
    wait_until(lambda: all(map(free, ports)), "the forwarded ports to be closed")
    assert stage.cluster.get("dfd", "-A")["items"] == [], "the definition stays, and no deployment"
    wait_until(lambda: not stage.cluster.get("pods", "-n", "default")["items"], "the engines to go")


def test_the_pages_ask_prometheus_for_what_the_rules_record() -> None:
    recorded = set(re.findall(r"record: (dflash:\S+)", RULE_FILE.read_text(encoding="utf-8")))
    asked = re.findall(r"query=(dflash:[\w:]+)", "\n".join(commands()))
    assert len(asked) == 2
    assert set(asked) <= recorded


def test_every_command_is_one_that_bash_understands() -> None:
    found = commands()
    assert len(found) >= len(PROMISES)
    for command in found:
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
