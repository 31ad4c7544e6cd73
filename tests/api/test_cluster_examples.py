"""The kustomizations of examples/clusters: the API server takes them as they are, and the operator finds nothing wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.engines.resolved import OperatorDefaults
from testbed.cluster import Cluster
from testbed.operator_process import ROOT
from tests.support.planning_world import World

FOLDERS = sorted(folder.parent for folder in (ROOT / "examples" / "clusters").glob("*/kustomization.yaml"))
HOW_TOS = ROOT / "docs" / "how-to"
_OBJECT = re.compile(r"```yaml\n((?:(?!```).)*^kind: DFlashDeployment\n.*?)```", re.MULTILINE | re.DOTALL)
PAGES = {page.name: found for page in sorted(HOW_TOS.glob("*.md")) if (found := _OBJECT.findall(page.read_text(encoding="utf-8")))}
each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
GPUS = {"test-bed": 3, "one-b200-node": 8, "several-nodes": 32, "shared-with-quotas": 4, "kueue": 3}
"""What examples/README.md and the comments say, with the candidate of a rollout."""


def built(cluster: Cluster, folder: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(cluster.kubectl("kustomize", str(folder))) if item]


def deployments(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in items if item["kind"] == "DFlashDeployment"]


def test_every_folder_is_told() -> None:
    assert {folder.name for folder in FOLDERS} == set(GPUS)
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in GPUS if f"(clusters/{name}/kustomization.yaml)" not in page] == []
    for name, count in GPUS.items():
        [row] = [line for line in page.splitlines() if f"(clusters/{name}/" in line]
        assert row.endswith(f"| {count} |") or name == "test-bed"


@pytest.fixture(scope="module")
def namespaces(cluster: Cluster) -> Iterator[set[str]]:
    """Those of all folders: a dry run makes none, and needs them."""
    names = {item["metadata"]["name"] for folder in FOLDERS for item in built(cluster, folder) if item["kind"] == "Namespace"}
    for name in names:
        cluster.kubectl("create", "namespace", name)
    yield names
    for name in names:
        cluster.delete_namespace(name)


@each
def test_the_api_server_takes_all_of_it(folder: Path, cluster: Cluster, namespaces: set[str]) -> None:
    items = built(cluster, folder)
    # Kueue's own kinds are not in the test bed.
    known = [item for item in items if not item["apiVersion"].startswith("kueue.")]
    assert len(known) == len(items) or folder.name == "kueue"
    made = {item["metadata"]["name"] for item in known if item["kind"] == "Namespace"}
    assert {item["metadata"].get("namespace", "default") for item in deployments(items)} <= made | {"default"}
    assert made <= namespaces
    cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=yaml.safe_dump_all(known))


@each
def test_the_operator_finds_nothing_wrong(folder: Path, cluster: Cluster) -> None:
    gpus = 0
    for item in deployments(built(cluster, folder)):
        world = World(item["spec"], defaults=OperatorDefaults(host_path_roots=("/mnt/models",)))
        world.kinds = frozenset({"LeaderWorkerSet"})
        world.settle()
        assert world.reason("Stalled") not in ("InvalidSpec", "PairUnknown", "DrafterMismatch", "EngineUnsupported"), world.condition(
            "Stalled"
        )
        assert world.of_kind("ControllerRevision"), world.reason("Stalled")
        spec = item["spec"]
        tensor = spec.get("parallelism", {}).get("tensor", 1)
        gpus += tensor * (spec["replicas"] + spec.get("rollout", {}).get("maxSurge", 0))
    assert gpus == GPUS[folder.name]


@pytest.mark.parametrize("page", PAGES)
def test_the_objects_of_a_how_to_are_taken(page: str, cluster: Cluster) -> None:
    for manifest in PAGES[page]:
        cluster.kubectl(
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-n",
            "default",
            "-f",
            "-",
            input=manifest.replace("namespace: models", "namespace: default"),
        )
        world = World(yaml.safe_load(manifest)["spec"])
        world.kinds = frozenset({"LeaderWorkerSet"})
        world.settle()
        assert world.of_kind("ControllerRevision"), world.reason("Stalled")
