"""Fixtures of the levels that need a cluster. Nothing is started before a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings

from testbed.cluster import Cluster
from testbed.operator_forks import OperatorForks
from testbed.operator_process import OperatorProcess, install_chart
from testbed.pod_watch import PodWatch
from testbed.simulator_process import SimulatorProcess

# A pipeline must not fail by luck: there the examples are the same each time. Everywhere else new ones are looked for. How long an example
# takes says nothing on a machine that does something else beside it.
settings.register_profile("examples", derandomize=bool(os.environ.get("CI")), deadline=None)
settings.load_profile("examples")

# What a command prints depends on these. A pipeline may set them, the shell of a reader does not export them.
for variable in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(variable, None)

CRDS = Path(__file__).parent.parent / "crds"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked long come first: a worker that began one last would end long after the others."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@dataclass(frozen=True)
class Kubectl:
    """`kubectl` as administrator in the test's namespace: returns standard output, raises CommandError when it fails."""

    cluster: Cluster
    namespace: str

    def __call__(self, *arguments: str, input: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, input=input)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One cluster for the whole session, with the project's CRD; tests work in namespaces of their own.

    Each worker of pytest-xdist is a session, so what a test does to the whole cluster disturbs no test of another worker. A cluster that
    cannot be started fails the tests that need it: a skipped level would look like a passed one.
    """
    with Cluster() as running:
        if any(CRDS.glob("*.yaml")):
            running.install_crds(CRDS)
        yield running


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace in which pods can be created at once; afterwards no deployment and no pod is in it.

    It stays itself: to delete one the controllers list and delete every kind there is.
    """
    name = cluster.create_namespace()
    yield name
    cluster.empty_namespace(name)


@pytest.fixture
def kubectl(cluster: Cluster, namespace: str) -> Kubectl:
    """See Kubectl."""
    return Kubectl(cluster, namespace)


class StartOperator(Protocol):
    """Starts an operator that serves the test's namespace only and returns it leading; ``settings`` are ``DFLASH_`` variables."""

    def __call__(self, name: str = "operator", *, kubeconfig: Path | None = None, **settings: str) -> OperatorProcess: ...


@pytest.fixture(scope="module")
def simulator(cluster: Cluster) -> Iterator[SimulatorProcess]:
    """The engine simulator, which plays the pods of every namespace: those of a file that does not ask for it are left to kwok."""
    with SimulatorProcess(cluster) as running:
        yield running


@pytest.fixture(scope="session")
def rights(cluster: Cluster) -> None:
    """The operator's ServiceAccount with the rights its chart gives it."""
    install_chart(cluster, crds=False)


@pytest.fixture(scope="module")
def pod_watch(cluster: Cluster) -> Iterator[PodWatch]:
    """Records every change of every engine pod from the watch stream."""
    with PodWatch(cluster) as watch:
        yield watch


@pytest.fixture(scope="session")
def forks(cluster: Cluster) -> Iterator[OperatorForks]:
    """Starts operators in half the time."""
    with OperatorForks(str(cluster.directory)) as running:
        yield running


@pytest.fixture
def start_operator(
    cluster: Cluster, namespace: str, rights: None, simulator: SimulatorProcess, forks: OperatorForks
) -> Iterator[StartOperator]:
    """See StartOperator. Whatever still runs after the test is killed."""
    started: list[OperatorProcess] = []

    def start(name: str = "operator", *, kubeconfig: Path | None = None, **settings: str) -> OperatorProcess:
        own = {
            "namespaces": namespace,
            "lease_name": namespace,
            "leader_election": "false",
            "log_format": "text",
            "scrape_seconds": "1",
            "metrics_window_seconds": "10",
        }
        operator = OperatorProcess(cluster, own | settings, name=f"{namespace}-{name}", kubeconfig=kubeconfig, forks=forks)
        started.append(operator)
        return operator.start().wait_to_lead()

    yield start
    for operator in started:
        operator.kill()
