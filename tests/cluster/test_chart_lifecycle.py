"""A release's life on a real API server: install, upgrade, rollback, uninstall, reinstall, and several releases in one cluster.

kwok plays the operator's pods, so this proves objects, rights and their order; that the process works with the rights of a release is
shown by processes under its ServiceAccounts. Namespaces enforce the restricted Pod Security Standard.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.cluster import Cluster, CommandError
from testbed.operator_process import OperatorProcess
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until
from tests.chart.kinds import monitoring_definitions
from tests.chart.rendering import CHART, installer_role, parsed

pytestmark = pytest.mark.long

PREVIOUS = Path(__file__).parents[1] / "chart" / "data" / "dflash-operator-0.1.0.tgz"
RELEASE = "dflash-operator"
CRD = "dflashdeployments.serving.dflash.io"
COLUMN = "Drafter"
"""A column that the older definition lacks."""


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster without the definition: these tests install and remove it."""
    with Cluster() as running:
        yield running


@pytest.fixture
def namespaces(own_cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Two fresh namespaces; afterwards no release, role or definition is left."""
    pair = own_cluster.create_namespace("one"), own_cluster.create_namespace("two")
    for name in pair:
        own_cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield pair
    for name in pair:
        for release in json.loads(own_cluster.helm("list", "--namespace", name, "--all", "--output", "json")):
            own_cluster.helm("uninstall", release["name"], "--namespace", name)
        own_cluster.delete_namespace(name)
    own_cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart before this one, with a definition that lacks a column."""
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(PREVIOUS) as archive:
        archive.extractall(folder, filter="data")
    chart = folder / RELEASE
    (chart / "files" / "crd.yaml").write_text(older_definition())
    return chart


def definition() -> dict[str, Any]:
    [found] = parsed((CHART / "files" / "crd.yaml").read_text())
    return found


def older_definition() -> str:
    old = definition()
    [version] = old["spec"]["versions"]
    version["additionalPrinterColumns"] = [column for column in version["additionalPrinterColumns"] if column["name"] != COLUMN]
    return yaml.safe_dump(old, sort_keys=False)


def columns(cluster: Cluster) -> set[str]:
    """Columns of the definition in the cluster."""
    [version] = cluster.get("crd", CRD)["spec"]["versions"]
    return {column["name"] for column in version["additionalPrinterColumns"]}


def install(cluster: Cluster, namespace: str, *options: str, verb: str = "install", chart: Path = CHART, release: str = RELEASE) -> str:
    """Install or upgrade. Returns what Helm said."""
    return cluster.helm(verb, release, str(chart), "--namespace", namespace, "--timeout=120s", *options)


def may_create(cluster: Cluster, kubeconfig: Path, resource: str) -> bool:
    """Whether the user of a kubeconfig may create such objects in its namespace."""
    try:
        return cluster.kubectl("auth", "can-i", "create", resource, kubeconfig=kubeconfig).strip() == "yes"
    except CommandError:  # kubectl fails where the answer is no
        return False


def deploy(cluster: Cluster, namespace: str) -> str:
    """Make a DFlashDeployment; returns its UID."""
    cluster.wait_for_crds()
    spec = {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": 1}
    kind = {"apiVersion": "serving.dflash.io/v1alpha1", "kind": "DFlashDeployment"}
    cluster.apply_yaml({**kind, "metadata": {"name": "chat", "namespace": namespace}, "spec": spec})
    return uid(cluster, namespace)


def uid(cluster: Cluster, namespace: str) -> str:
    found = cluster.get("--namespace", namespace, "dfd", "chat")
    assert found["spec"]["target"] == {"model": "Qwen/Qwen3.5-9B"}
    return str(found["metadata"]["uid"])


def commands(text: str, *programs: str) -> list[str]:
    """The command lines that a message tells, by what they begin with; a backslash joins lines."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip().startswith(programs)]


def follow(cluster: Cluster, text: str) -> None:
    """Do what a message tells: label and annotate the definition."""
    told = commands(text, "kubectl label", "kubectl annotate")
    assert len(told) == 2, text
    for command in told:
        cluster.kubectl(*command.split()[1:])


def test_a_deployment_survives_upgrade_rollback_uninstall_and_reinstall(
    own_cluster: Cluster, namespaces: tuple[str, str], previous: Path
) -> None:
    cluster, (namespace, users) = own_cluster, namespaces
    install(cluster, namespace, "--wait", chart=previous)
    before = deploy(cluster, users)
    assert COLUMN not in columns(cluster)

    notes = install(cluster, namespace, "--wait", verb="upgrade")
    assert uid(cluster, users) == before
    assert COLUMN in columns(cluster), "the upgrade takes the definition along"
    assert f"kubectl -n {namespace} rollout status deployment/{RELEASE}" in notes
    for command in commands(notes, "kubectl -n", "helm -n"):
        if "port-forward" not in command:
            program, *words = command.split()
            assert (cluster.kubectl if program == "kubectl" else cluster.helm)(*words)

    cluster.helm("rollback", RELEASE, "1", "--namespace", namespace)
    assert uid(cluster, users) == before
    assert COLUMN not in columns(cluster)
    install(cluster, namespace, verb="upgrade")

    cluster.helm("uninstall", RELEASE, "--namespace", namespace, "--wait")
    assert uid(cluster, users) == before
    left = cluster.get(
        "all,clusterroles,clusterrolebindings,roles,rolebindings,pdb,networkpolicies", "-A", f"-lapp.kubernetes.io/instance={RELEASE}"
    )
    assert left["items"] == []

    install(cluster, namespace)
    assert uid(cluster, users) == before
    assert cluster.get("crd", CRD)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_without_keep_the_definition_goes_with_the_release(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    install(own_cluster, namespaces[0], "--set=crds.keep=false")
    own_cluster.helm("uninstall", RELEASE, "--namespace", namespaces[0], "--wait")
    with pytest.raises(CommandError, match="NotFound"):
        own_cluster.get("crd", CRD)


def test_helm_test_passes(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    """The pod is let in by Pod Security and ends well; what it asks is asked by a real kubelet only."""
    install(own_cluster, namespaces[0])
    said = own_cluster.helm("test", RELEASE, "--namespace", namespaces[0], "--timeout=120s")
    assert re.search(r"Phase:\s+Succeeded", said)


def test_a_definition_applied_by_kubectl_is_left_alone_and_can_be_handed_over(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    cluster, (namespace, users) = own_cluster, namespaces
    cluster.install_crds(CHART / "files" / "crd.yaml")
    before = deploy(cluster, users)
    notes = install(cluster, namespace)
    assert "belongs to no Helm release" in notes
    assert "annotations" not in cluster.get("crd", CRD)["metadata"]

    follow(cluster, notes)
    install(cluster, namespace, verb="upgrade")
    crd = cluster.get("crd", CRD)["metadata"]
    assert (crd["annotations"]["helm.sh/resource-policy"], crd["labels"]["app.kubernetes.io/instance"]) == ("keep", RELEASE)
    cluster.helm("uninstall", RELEASE, "--namespace", namespace)
    assert uid(cluster, users) == before


def test_a_definition_that_differs_is_refused_with_the_remedy(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    cluster, (namespace, users) = own_cluster, namespaces
    cluster.apply_yaml(older_definition())
    before = deploy(cluster, users)
    with pytest.raises(CommandError, match="belongs to no Helm release and differs") as refused:
        install(cluster, namespace)
    assert COLUMN not in columns(cluster)

    follow(cluster, refused.value.stderr)
    install(cluster, namespace)
    assert COLUMN in columns(cluster)
    assert uid(cluster, users) == before


def test_a_definition_kept_elsewhere_may_differ_where_that_is_said(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    own_cluster.apply_yaml(older_definition())
    own_cluster.wait_for_crds()
    install(own_cluster, namespaces[0], "--set=crds.install=false")
    assert COLUMN not in columns(own_cluster)


def test_two_releases_of_one_name_serve_a_namespace_each(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    cluster = own_cluster
    for namespace in namespaces:
        notes = install(cluster, namespace, f"--set=watchNamespaces={{{namespace}}}")
    assert f"belongs to release {RELEASE} in namespace {namespaces[0]}" in notes
    for namespace in namespaces:  # engines run as root, so they are not for restricted namespaces
        cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    uids = [deploy(cluster, namespace) for namespace in namespaces]

    # Each operator, with the rights of its release, serves its own namespace and asks for nothing that it may not do.
    mark = cluster.audit_mark()
    with SimulatorProcess(cluster):
        running = []
        try:
            for namespace in namespaces:
                own = {"namespaces": namespace, "lease_namespace": namespace, "log_format": "text", "scrape_seconds": "1"}
                kubeconfig = cluster.service_account_kubeconfig(namespace, RELEASE)
                operator = OperatorProcess(cluster, own, name=f"{namespace}-operator", kubeconfig=kubeconfig)
                running.append(operator)
                operator.start().wait_to_lead()
                assert "/healthz: 200" in asked_as_by_helm_test(cluster, namespace, operator.url)
            for namespace in namespaces:
                cluster.kubectl("--namespace", namespace, "wait", "--for=condition=Ready", "dfd/chat", "--timeout=120s")
                cluster.kubectl("--namespace", namespace, "scale", "dfd/chat", "--replicas=2")
            for namespace in namespaces:
                wait_until(lambda name=namespace: status(cluster, name).get("readyReplicas") == 2, f"two replicas in {namespace}", 60)
        finally:
            for operator in running:
                operator.stop()
    for namespace in namespaces:
        events = cluster.audit(mark, user=f"system:serviceaccount:{namespace}:{RELEASE}")
        assert {event["objectRef"]["namespace"] for event in events if event.get("objectRef", {}).get("namespace")} == {namespace}
        assert [event["requestURI"] for event in events if event["responseStatus"]["code"] == 403] == []

    cluster.helm("uninstall", RELEASE, "--namespace", namespaces[0], "--wait")
    assert [uid(cluster, namespace) for namespace in namespaces] == uids
    assert may(cluster, namespaces[1], "patch", "deployments.apps", namespaces[1])
    assert not may(cluster, namespaces[1], "list", "deployments.apps", namespaces[0])
    install(cluster, namespaces[1], f"--set=watchNamespaces={{{namespaces[1]}}}", verb="upgrade")


def asked_as_by_helm_test(cluster: Cluster, namespace: str, url: str) -> str:
    """What the program of the test pod makes of a running operator; it fails where the answers are wrong."""
    [pod] = [one for one in parsed(cluster.helm("get", "hooks", RELEASE, "--namespace", namespace)) if one["kind"] == "Pod"]
    program, service = pod["spec"]["containers"][0]["args"]
    assert service == f"http://{RELEASE}-metrics.{namespace}.svc:8080"
    return subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=True, timeout=60).stdout


def status(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("--namespace", namespace, "dfd", "chat").get("status") or {}
    return found


def may(cluster: Cluster, namespace: str, verb: str, resource: str, where: str) -> bool:
    """Whether the release's ServiceAccount may do something in a namespace."""
    user = f"--as=system:serviceaccount:{namespace}:{RELEASE}"
    try:
        cluster.kubectl("auth", "can-i", "--quiet", verb, resource, user, "--namespace", where)
    except CommandError:
        return False
    return True


def test_a_second_operator_for_the_same_namespace_is_refused(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    cluster, (one, two) = own_cluster, namespaces
    install(cluster, one, f"--set=watchNamespaces={{{one}}}")
    served = f"DFlashDeployments of namespace {one} are served already, by release {RELEASE} in namespace {one}"
    with pytest.raises(CommandError, match=served):
        install(cluster, two)
    with pytest.raises(CommandError, match=served):
        install(cluster, two, f"--set=watchNamespaces={{{two},{one}}}")
    with pytest.raises(CommandError, match=served):
        install(cluster, one, f"--set=watchNamespaces={{{one}}}", release="other")
    install(cluster, one, f"--set=watchNamespaces={{{one}}},fullnameOverride=renamed", verb="upgrade")
    install(cluster, two, "--set=refuseOverlap=false")


def test_two_operators_for_all_namespaces_are_refused(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    install(own_cluster, namespaces[0])
    with pytest.raises(CommandError, match="DFlashDeployments of all namespaces are served already"):
        install(own_cluster, namespaces[1])
    install(own_cluster, namespaces[0], verb="upgrade")


def test_a_user_with_rights_in_one_namespace_can_install_there(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    """With Kubernetes' own ClusterRole admin, and the Role that the documentation adds to it."""
    cluster, namespace = own_cluster, namespaces[0]
    cluster.install_crds(CHART / "files" / "crd.yaml")
    cluster.kubectl("--namespace", namespace, "create", "serviceaccount", "user")
    role = installer_role()
    cluster.apply_yaml(role, namespace)
    for kind, name in (("clusterrole", "admin"), ("role", role["metadata"]["name"])):
        cluster.kubectl("--namespace", namespace, "create", "rolebinding", name, f"--{kind}={name}", f"--serviceaccount={namespace}:user")
    kubeconfig = cluster.service_account_kubeconfig(namespace, "user")
    # A binding takes effect when the API server's cache has it; admin is put together by a controller.
    for resource in ("deployments.apps", "controllerrevisions.apps"):
        wait_until(partial(may_create, cluster, kubeconfig, resource), f"the right to create {resource}")
    off = "crds.install=false,rbac.readNodes=false,rbac.aggregateRoles=false,admissionPolicy.enabled=false"
    values = f"--set=watchNamespaces={{{namespace}}},{off}"
    install(cluster, namespace, values, f"--kubeconfig={kubeconfig}")
    install(cluster, namespace, values, f"--kubeconfig={kubeconfig}", verb="upgrade")
    cluster.helm("uninstall", RELEASE, "--namespace", namespace, f"--kubeconfig={kubeconfig}")


def test_monitoring_appears_with_its_kinds(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    """Prometheus Operator installed after the chart: the next upgrade makes what it needs. Its own definitions judge it."""
    cluster, namespace = own_cluster, namespaces[0]
    install(cluster, namespace)
    pods = cluster.get("--namespace", namespace, "deployment", RELEASE)["spec"]["template"]["metadata"]["annotations"]
    assert pods["prometheus.io/scrape"] == "true"
    for file in monitoring_definitions():
        cluster.install_crds(file)
    try:
        install(cluster, namespace, "--set=metrics.enginePodMonitor.enabled=true", verb="upgrade")
        kinds = "servicemonitors,podmonitors,prometheusrules"
        found = cluster.get("--namespace", namespace, kinds, f"-lapp.kubernetes.io/instance={RELEASE}")["items"]
        assert {item["kind"] for item in found} == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
        assert (
            "prometheus.io/scrape"
            not in cluster.get("--namespace", namespace, "deployment", RELEASE)["spec"]["template"]["metadata"]["annotations"]
        )
        cluster.helm("uninstall", RELEASE, "--namespace", namespace, "--wait")
        assert cluster.get("--namespace", namespace, kinds, f"-lapp.kubernetes.io/instance={RELEASE}")["items"] == []
    finally:
        for file in monitoring_definitions():
            cluster.kubectl("delete", "--filename", str(file))


def test_what_is_rendered_can_be_applied_without_helm(own_cluster: Cluster, namespaces: tuple[str, str]) -> None:
    """As Argo CD does it, validated strictly by the server, and a second time without a change."""
    cluster, namespace = own_cluster, namespaces[0]
    text = cluster.helm("template", RELEASE, str(CHART), "--namespace", namespace, "--kube-version=1.35", "--no-hooks")
    apply = ("apply", "--server-side", "--validate=strict", "--field-manager=argocd-controller", "--output=json", "--filename=-")
    first = json.loads(cluster.kubectl(*apply, input=text))["items"]
    cluster.kubectl("--namespace", namespace, "rollout", "status", f"deployment/{RELEASE}", "--timeout=120s")
    second = json.loads(cluster.kubectl(*apply, input=text))["items"]
    assert [item["metadata"].get("generation") for item in first] == [item["metadata"].get("generation") for item in second]
    cluster.kubectl("delete", "--filename=-", input=text)
