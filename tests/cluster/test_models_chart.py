"""The chart of models beside a running operator: installed, scaled, changed, shortened, uninstalled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from testbed.cluster import Cluster, CommandError
from testbed.operator_process import ROOT
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import UNJUDGED, Deployment
from tests.support.releases import default_release

CHART = ROOT / "charts" / "dflash-models"
COLLECTED_S = 90.0
"""The garbage collector looks for new kinds every 30 seconds, and collects nothing meanwhile: 14 to 36 s after the CRD is new."""
RELEASE = "models"
FIRST, SECOND = "a" * 40, "b" * 40

Helm = Callable[..., str]


@pytest.fixture
def helm(cluster: Cluster, namespace: str) -> Helm:
    """``helm VERB models CHART`` with these values in the test's namespace; without values no chart either. Returns what it printed."""

    def run(verb: str, values: dict[str, Any] | None = None) -> str:
        if values is None:
            return cluster.helm(verb, RELEASE, f"--namespace={namespace}")
        return cluster.helm(verb, RELEASE, str(CHART), f"--namespace={namespace}", "--values=-", input=yaml.safe_dump(values))

    return run


def values(*names: str, **more: dict[str, Any]) -> dict[str, Any]:
    """These models, all alike but for what ``more`` says of the spec of one."""
    defaults = {
        "target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40},
        "drafter": {"revision": FIRST},
        "tuning": {"mode": "Off"},
        "rollout": {"maxSurge": 1, "maxUnavailable": 0, **UNJUDGED},
    }
    models = [{"name": name, **({"spec": more[name]} if name in more else {})} for name in names]
    return {"defaults": {"labels": {"team": "inference"}, "spec": defaults}, "models": models}


def names(cluster: Cluster, namespace: str, kind: str = "dfd") -> set[str]:
    found = cluster.get("--namespace", namespace, kind)["items"]
    return {item["metadata"]["name"] for item in found}


def test_a_list_of_models_is_served_changed_and_taken_away(
    start_operator: StartOperator, cluster: Cluster, namespace: str, helm: Helm
) -> None:
    start_operator(warm_up_seconds="0")
    chat, code, old = (Deployment(cluster, namespace, name) for name in ("chat", "code", "old"))
    vllm = {"engine": {"name": "vllm", "version": default_release("vllm")}}

    told = helm("install", values("chat", "code", "old", code=vllm))
    assert f"3 models were created in namespace {namespace}" in told
    for deployment in (chat, code, old):
        deployment.wait_done()
    assert (chat.status()["engine"], code.status()["engine"]) == (f"sglang {default_release('sglang')}", f"vllm {default_release('vllm')}")
    selected = cluster.get("-n", namespace, "dfd", "-l", f"app.kubernetes.io/instance={RELEASE},team=inference")["items"]
    assert len(selected) == 3

    # Scaled by somebody else, one changed, one taken out.
    cluster.kubectl("--namespace", namespace, "scale", "dfd/code", "--replicas=2")
    code.wait_done()
    before, pods = chat.status()["stableRevision"], code.pod_uids()
    helm("upgrade", values("chat", "code", code=vllm, chat={"drafter": {"revision": SECOND}}))
    wait_until(lambda: names(cluster, namespace) == {"chat", "code"}, "the model that was taken out to go")
    chat.wait_phase("Completed")
    chat.wait_done()
    now = chat.status()
    assert now["stableRevision"] != before
    assert now["drafterRevision"] == SECOND
    wait_until(lambda: not old.children("pods") and not old.children("services"), "its pods and its Service to go", COLLECTED_S)
    assert code.get()["spec"]["replicas"] == 2
    assert code.pod_uids() == pods, "nothing was changed about this one"

    # A rule between fields is the API server's: what serves stays as it was.
    with pytest.raises(CommandError, match=r"spec\.blockSize: is larger than spec\.drafter\.trainedBlockSize"):
        helm("upgrade", values("chat", "code", code=vllm, chat={"blockSize": 16, "drafter": {"trainedBlockSize": 8}}))
    assert chat.get()["spec"]["drafter"] == {"revision": SECOND}

    helm("uninstall")
    wait_until(lambda: not names(cluster, namespace), "all models to go")
    wait_until(lambda: not names(cluster, namespace, "pods"), "all pods to go", COLLECTED_S)


def test_a_model_may_outlive_its_release(cluster: Cluster, namespace: str, helm: Helm) -> None:
    kept = values("chat", "code")
    kept["models"][0]["annotations"] = {"helm.sh/resource-policy": "keep"}
    helm("install", kept)
    helm("uninstall")
    assert names(cluster, namespace) == {"chat"}


def test_without_a_model_the_notes_say_how_to_add_one(namespace: str, helm: Helm) -> None:
    assert "--set 'models[0].model=Qwen/Qwen3.5-9B'" in helm("install", {})
    told = helm("upgrade", {"models": [{"model": "Qwen/Qwen3.5-9B"}]})
    assert f"kubectl -n {namespace} port-forward service/qwen3-5-9b 8000:http" in told
    assert "Pin a commit of the drafter" in told
