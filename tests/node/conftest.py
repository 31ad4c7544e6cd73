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
    """A fresh namespace for engines; afterwards nothing is in it."""
    name = cluster.create_namespace("engines")
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=baseline")
    yield name
    cluster.delete_namespace(name)
