"""One cluster with a real node for the whole session. It runs inside ``python -m testbed.real_node run``, as ``make e2e-node`` does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cluster import Cluster
from testbed.nodes import NodePool
from testbed.real_node.isolation import NODE_ADDRESS
from testbed.real_node.node import RealNode
from tests.e2e.conftest import say  # noqa: F401  a fixture
from tests.node.release import OPERATOR_NAMESPACE, install_operator, install_prometheus

LAYOUT = "DFLASH_NODE_IMAGES"
"""Environment variable with the OCI layout of the node's images: they cannot be built where nothing outside is reached."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster without the definition, which the chart installs. Its simulated nodes have GPUs of another kind than the real one."""
    with Cluster(pools=(NodePool("h200", 2, product="NVIDIA-H200"),), node_address=NODE_ADDRESS) as running:
        yield running


@pytest.fixture(scope="session")
def node(cluster: Cluster) -> Iterator[RealNode]:
    """The real node, Ready."""
    with RealNode(cluster) as running:
        yield running.start(Path(os.environ[LAYOUT]))


@pytest.fixture(scope="session")
def operator(cluster: Cluster, node: RealNode) -> str:
    """Prometheus and the operator, installed as a user does it. Returns the operator's namespace."""
    install_prometheus(cluster)
    install_operator(cluster)
    return OPERATOR_NAMESPACE


@pytest.fixture
def engines(cluster: Cluster, operator: str) -> Iterator[str]:
    """A fresh namespace for engines that may run as root; afterwards nothing is in it."""
    yield from _namespace(cluster, "baseline")


@pytest.fixture
def restricted(cluster: Cluster, operator: str) -> Iterator[str]:
    """A fresh namespace that enforces the restricted Pod Security Standard; afterwards nothing is in it."""
    yield from _namespace(cluster, "restricted")


def _namespace(cluster: Cluster, standard: str) -> Iterator[str]:
    name = cluster.create_namespace("engines")
    cluster.kubectl("label", "namespace", name, f"pod-security.kubernetes.io/enforce={standard}")
    yield name
    cluster.delete_namespace(name)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds to a failed test what the cluster shows: afterwards it is gone."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    running = getattr(item, "funcargs", {}).get("cluster")
    if report.when in ("setup", "call") and report.failed and running is not None:
        for title, arguments in _SHOWN.items():
            try:
                shown = running.kubectl(*arguments)
            except Exception as error:
                shown = str(error)
            report.sections.append((title, shown[-6000:]))
        for log in sorted((running.directory / "nodes").glob("*/kube*.log")):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("E", "W"))]
            report.sections.append((f"{log.parent.name}: {log.name}", "\n".join(lines)[-6000:]))
        for pod in running.get("pods", "-A", "-lserving.dflash.io/deployment")["items"]:
            name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
            try:
                shown = running.kubectl("logs", "-n", namespace, name, "--tail=20")
            except Exception as error:
                shown = str(error)
            report.sections.append((f"{name}: {pod['status']}"[:3000], shown))


_SHOWN = {
    "objects": ("get", "all,dfd,nodes", "-A", "-o", "wide"),
    "endpoints": ("get", "endpointslices", "-A", "-o", "yaml"),
    "deployments": ("get", "dfd", "-A", "-o", "yaml"),
    "events": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
    "operator": ("logs", "-n", OPERATOR_NAMESPACE, "-lapp.kubernetes.io/name=dflash-operator", "--tail=30", "--prefix"),
}
