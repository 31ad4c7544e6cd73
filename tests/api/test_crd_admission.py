"""What the API server itself takes and refuses, with the message each author reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from testbed.cluster import Cluster, CommandError

HERE = Path(__file__).parent
INVALID = sorted((HERE / "invalid").glob("*.yaml"))
VALID = sorted((HERE / "valid").glob("*.yaml"))


def header(file: Path, key: str) -> str:
    return next(line.removeprefix(f"# {key}: ") for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(f"# {key}: "))


REFUSED = [file for file in INVALID if header(file, "by") == "apiserver"]
STALLING = [file for file in INVALID if header(file, "by") == "operator"]


def test_there_are_enough_invalid_objects() -> None:
    assert len(REFUSED) >= 25
    assert len(REFUSED) + len(STALLING) == len(INVALID)


@pytest.mark.parametrize("file", REFUSED, ids=lambda file: file.stem)
def test_an_invalid_object_is_refused_with_its_message(cluster: Cluster, file: Path) -> None:
    with pytest.raises(CommandError) as refusal:
        cluster.kubectl("apply", "--dry-run=server", "-f", str(file))
    assert header(file, "expect") in refusal.value.stderr


@pytest.mark.parametrize("file", [*VALID, *STALLING], ids=lambda file: file.stem)
def test_an_object_is_accepted_and_stored_as_written(cluster: Cluster, file: Path) -> None:
    answer = json.loads(cluster.kubectl("apply", "--dry-run=server", "-o", "json", "-f", str(file)))
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    # Policy defaults are not filled in; replicas is, for the scale subresource.
    assert answer["spec"] == {"replicas": 1, **written["spec"]}


def test_explain_tells_what_a_change_does(cluster: Cluster) -> None:
    text = " ".join(cluster.kubectl("explain", "dfd.spec.tuning").split())
    assert "How the block size follows the load." in text
    assert "blockSizes <[]integer>" in text
    assert "mode <string>" in text
    assert "Policy: changing it restarts nothing." in text
    assert "Changing it starts a new revision." in " ".join(cluster.kubectl("explain", "dfd.spec.target.model").split())
    assert "Applied in place." in " ".join(cluster.kubectl("explain", "dfd.spec.replicas").split())


def test_columns_scale_and_status(cluster: Cluster, namespace: str) -> None:
    cluster.apply_yaml(HERE / "valid" / "least.yaml", namespace)
    assert cluster.kubectl("-n", namespace, "get", "dfd").split()[:9] == [
        *["NAME", "READY", "ENGINE", "BLOCK", "ACCEPTANCE", "REPLICAS", "REVISION", "PHASE", "AGE"]
    ]
    wide = cluster.kubectl("-n", namespace, "get", "dfd", "-o", "wide").split()
    assert wide[9:15] == ["TARGET", "DRAFTER", "DRAFTER-REVISION", "CONCURRENCY", "TOKENS/S", "REASON"]
    generation = cluster.get("-n", namespace, "dfd/least")["metadata"]["generation"]
    status = {
        "observedGeneration": generation,
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "AsSpecified", "message": "m", "lastTransitionTime": "2026-11-28T01:00:00Z"}
        ],
        "serving": "1/1",
        "replicas": 1,
        "selector": "serving.dflash.io/deployment=least,serving.dflash.io/role=engine",
        "speculation": {"mode": "Schedule", "ranges": [[1, 8, 15], [9, 64, 7]], "label": "schedule-16"},
        "metrics": {"acceptanceLength": 5.73},
    }
    cluster.kubectl("-n", namespace, "patch", "dfd/least", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    stored = cluster.get("-n", namespace, "dfd/least")
    assert stored["status"] == status, "a field of the status is missing in the schema"
    assert stored["metadata"]["generation"] == generation
    assert " ".join(cluster.kubectl("-n", namespace, "get", "dfd", "--no-headers").split()[:5]) == "least True schedule-16 5.73 1/1"
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "dfd/least", "--timeout=5s")
    cluster.kubectl("-n", namespace, "scale", "dfd/least", "--replicas=3")
    assert cluster.get("-n", namespace, "dfd/least")["spec"]["replicas"] == 3


def test_lists_merge_item_by_item_between_two_appliers(cluster: Cluster, namespace: str) -> None:
    cluster.apply_yaml(HERE / "valid" / "least.yaml", namespace)
    part = {
        "apiVersion": "serving.dflash.io/v1alpha1",
        "kind": "DFlashDeployment",
        "metadata": {"name": "least", "namespace": namespace},
        "spec": {"engine": {"env": [{"name": "A", "value": "1"}]}},
    }
    cluster.kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", input=json.dumps(part))
    part["spec"] = {"engine": {"env": [{"name": "B", "value": "2"}]}}
    cluster.kubectl("apply", "--server-side", "--field-manager=two", "-f", "-", input=json.dumps(part))
    stored = cluster.get("-n", namespace, "dfd/least")
    assert {variable["name"] for variable in stored["spec"]["engine"]["env"]} == {"A", "B"}
    assert stored["spec"]["target"]["model"] == "Qwen/Qwen3.5-9B"
