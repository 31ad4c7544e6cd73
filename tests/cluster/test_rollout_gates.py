"""A change is tried on one replica, judged, and then promoted, held or taken back: by an operator that talks to engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.operator_process import NAMESPACE, SERVICE_ACCOUNT
from testbed.pod_watch import PodWatch, breaks
from testbed.simulator_process import SimulatorProcess
from testbed.waiting import wait_until
from testbed.write_proxy import Write, WriteProxy
from tests.conftest import StartOperator
from tests.support.deployment import JUDGED, UNJUDGED, Deployment, played_with, rollout_spec
from tests.support.releases import default_release

pytestmark = pytest.mark.long

OLD, NEW = "a" * 40, "b" * 40
QUICK = {"warm_up_seconds": "1"}
ENGINES = tuple({"name": name, "version": default_release(name)} for name in ("sglang", "vllm"))
DEFAULT = {
    "analysis": {**JUDGED["analysis"], "acceptanceLength": {"interval": "1s"}},
    "probe": {"prompts": 64, "maxTokens": 48, "promptsPerMinute": 6000},
}
"""The default number of prompts, and the default limit but for speed."""
BRIEF = {"probe": {"prompts": 16, "maxTokens": 16, "promptsPerMinute": 6000}}
"""Enough to find what is wrong by far."""
CRASHING = {"sim/crash": "1", "sim/message": "no kernel image is available", "sim/crash-after": "50ms", "sim/restart-after": "100ms"}


def spec(replicas: int = 2, *, rollout: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return rollout_spec(replicas, rollout={**JUDGED, **(rollout or {})}, **more)


def test_a_drafter_that_collapses_is_taken_back_from_its_one_replica_and_not_tried_again(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    operator = start_operator(**QUICK)
    deployments = [Deployment(cluster, namespace, engine["name"]).create(spec(3, engine=engine, rollout=BRIEF)) for engine in ENGINES]
    for deployment in deployments:
        deployment.wait_done()
    before = {deployment.name: deployment.pod_uids() for deployment in deployments}
    with played_with(simulator, namespace, {"bbb*": {"acceptance": 0.0}}):
        for deployment in deployments:
            deployment.patch(drafter={"revision": NEW})
        for deployment in deployments:
            rollout = deployment.wait_phase("RolledBack", "Completed", "Held")
            assert (rollout["phase"], rollout["reason"]) == ("RolledBack", "AnalysisFailed")
    for deployment in deployments:
        rollout, stable = deployment.rollout(), deployment.status()["stableRevision"]
        failed = next(item for item in rollout["analysis"] if item["verdict"] == "Failed" and "cceptanceLength" in item["metric"])
        assert failed["candidate"] < 1.1
        assert failed["stable"] > 3
        assert failed["samples"] > 0
        assert 0 <= failed["ageSeconds"] < 30
        assert deployment.condition("Ready")[:2] == ("False", "RolledBack")
        assert deployment.condition("Stalled")[:2] == ("True", "RolledBack")
        assert deployment.condition("RolloutHealthy")[:2] == ("False", "AnalysisFailed")
        assert deployment.condition("Available")[0] == "True"
        assert rollout["revision"] in deployment.condition("Stalled")[2]
        assert deployment.pod_uids() == deployment.pod_uids(stable)
        assert len(deployment.pod_uids() & before[deployment.name]) == 2, "only the replica taken for the trial was made anew"
        assert not breaks(pod_watch.moments(namespace, deployment.name), least=2, most=3)
    # Neither a restart of the operator nor a change of policy tries it again.
    operator.kill()
    after = {deployment.name: deployment.pod_uids() for deployment in deployments}
    for deployment in deployments:
        deployment.patch(rollout={"historyLimit": 5})
    operator.start().wait_to_lead()
    for deployment in deployments:
        assert deployment.wait_phase("RolledBack", "Preparing", "Canary", "Completed")["phase"] == "RolledBack"
        assert deployment.pod_uids() == after[deployment.name]
        assert deployment.states() == ["Stable", "Failed"]


def test_a_drafter_that_changes_the_text_is_taken_back(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(rollout=BRIEF))
    deployment.wait_done()
    with played_with(simulator, namespace, {"bbb*": {"wrong_text": True}}):
        deployment.patch(drafter={"revision": NEW})
        rollout = deployment.wait_phase("RolledBack", "Completed", "Held")
    assert (rollout["phase"], rollout["reason"]) == ("RolledBack", "TextDiffers")
    text = deployment.verdicts()["text"]
    assert (text["verdict"], text["candidate"], text["limit"]) == ("Failed", 100, 5)
    assert [name for name, verdict in deployment.verdicts().items() if verdict["verdict"] == "Failed"] == ["text"]


def test_a_slower_drafter_is_taken_back_and_its_verdicts_shown_whoever_else_writes_to_its_workload(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str
) -> None:
    kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)
    with (
        WriteProxy(kubeconfig, cluster.directory / f"{namespace}.kubeconfig") as proxy,
        played_with(simulator, namespace, {"bbb*": {"step_time": 2.0}}),
    ):
        start_operator(kubeconfig=proxy.kubeconfig, **QUICK)
        deployment = Deployment(cluster, namespace).create(spec())
        deployment.wait_done()

        def somebody_is_quicker(write: Write, status: int) -> bool:
            if write.kind == "controllerrevisions" and b'"serving.dflash.io/state": "Failed"' in write.body:
                proxy.pass_all()
                for name in deployment.names("deployments"):
                    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
                    cluster.api.request("PATCH", path, {"metadata": {"annotations": {"example.com/note": "seen"}}})
            return True

        proxy.after = somebody_is_quicker
        deployment.patch(drafter={"revision": NEW})
        rollout = deployment.wait_phase("RolledBack", "Completed", "Held")
    assert proxy.after is not somebody_is_quicker
    assert (rollout["phase"], rollout["reason"]) == ("RolledBack", "AnalysisFailed")
    verdicts = deployment.verdicts()
    assert verdicts["probeSpeed"]["verdict"] == "Failed"
    assert verdicts["probeSpeed"]["candidate"] < 0.75 * verdicts["probeSpeed"]["stable"]
    assert verdicts["probeAcceptanceLength"]["verdict"] == "Successful", "it accepts as much"


@pytest.mark.parametrize(
    ("engine", "policy", "step_time"), [(ENGINES[0], DEFAULT, 1.0), (ENGINES[1], JUDGED, 5.0)], ids=["sglang", "vllm and few prompts"]
)
def test_an_equal_drafter_is_promoted_by_the_probe_alone_where_nobody_sends_requests(
    engine: dict[str, str],
    policy: dict[str, Any],
    step_time: float,
    start_operator: StartOperator,
    simulator: SimulatorProcess,
    cluster: Cluster,
    namespace: str,
    pod_watch: PodWatch,
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(3, engine=engine, rollout=policy))
    deployment.wait_done()
    first = len(deployment.events())
    # The speed of few prompts must be enough: the longer a step takes, the less weighs what a busy machine adds to it.
    with played_with(simulator, namespace, {"*": {"step_time": step_time}}):
        deployment.patch(drafter={"revision": NEW})
        rollout = deployment.wait_phase("Completed", "RolledBack", "Held")
    deployment.wait_done()
    assert rollout["phase"] == "Completed"
    assert deployment.status()["drafterRevision"] == NEW
    verdicts = deployment.verdicts()
    assert {name: verdicts[name]["verdict"] for name in ("probeAcceptanceLength", "probeSpeed", "text")} == {
        "probeAcceptanceLength": "Successful",
        "probeSpeed": "Successful",
        "text": "Successful",
    }
    assert verdicts["text"]["samples"] == verdicts["text"]["stableSamples"] == policy["probe"]["prompts"]
    assert verdicts["acceptanceLength"]["verdict"] == "Inconclusive", "no traffic is not taken for a good one"
    told = [reason for reason, _ in deployment.events()[first:]]
    assert [reason for reason in told if reason.startswith("Rollout") or reason == "Promoted"] == [
        "RolloutPreparing",
        "RolloutCanary",
        "RolloutAnalyzing",
        "Promoted",
        "RolloutProgressing",
        "RolloutCompleted",
    ]
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)


def test_one_replica_without_surge_is_compared_with_the_answers_stable_gave_before_it_stopped(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    # The limit is 5 %, which is too narrow for it. With few prompts the time of single answers, on a machine that other tests keep busy,
    # decides nothing.
    policy = DEFAULT
    ends = {"equal": (NEW, "Successful", ("Retired", "Stable")), "worse": ("c" * 40, "Failed", ("Stable", "Failed"))}
    deployments = [Deployment(cluster, namespace, name).create(spec(1, rollout=policy)) for name in ends]
    for deployment in deployments:
        deployment.wait_done()
    begun = {deployment.name: len(pod_watch.moments(namespace, deployment.name)) for deployment in deployments}
    with played_with(simulator, namespace, {"ccc*": {"acceptance": 0.9}}):
        for deployment in deployments:
            deployment.patch(drafter={"revision": ends[deployment.name][0]})
        for deployment in deployments:
            wait_until(lambda: deployment.rollout().get("reason") == "TakingReference", "the reference to be taken")  # noqa: B023
            assert deployment.rollout()["phase"] == "Preparing"
            assert deployment.pod_uids(deployment.status()["stableRevision"]), "it serves while it answers"
        for deployment in deployments:
            deployment.wait_phase("Completed", "RolledBack", "Held")
    for deployment in deployments:
        told = deployment.events()
        reasons = [reason for reason, _ in told]
        assert reasons.index("OutageAhead") < reasons.index("RolloutCanary")
        assert "nothing serves meanwhile" in told[reasons.index("OutageAhead")][1]
        moments = pod_watch.moments(namespace, deployment.name)[begun[deployment.name] :]
        assert min(moment.serving for moment in moments) == 0
        assert max(moment.held for moment in moments) == 1
        verdict = deployment.verdicts()["probeAcceptanceLength"]
        assert "before/after" in deployment.verdicts()["acceptanceLength"]["message"]
        assert verdict["limit"] == 10, "before and after differ by more than candidate and stable side by side"
        assert verdict["samples"] == policy["probe"]["prompts"]
        assert verdict["verdict"] == ends[deployment.name][1]
        deployment.wait_states(*ends[deployment.name][2])


def test_a_candidate_that_cannot_start_is_taken_back_with_its_own_words(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(3))
    deployment.wait_done()
    deployment.patch(drafter={"revision": NEW}, podTemplate={"metadata": {"annotations": CRASHING}})
    rollout = deployment.wait_phase("RolledBack", "Completed", "Held")
    assert (rollout["phase"], rollout["reason"]) == ("RolledBack", "EngineFailing")
    assert "no kernel image is available" in rollout["message"]
    assert "no kernel image is available" in deployment.condition("Stalled")[2]
    assert deployment.states() == ["Stable", "Failed"]
    assert not breaks(pod_watch.moments(namespace, "chat"), least=2, most=3)


def test_a_candidate_that_restarts_while_it_serves_is_taken_back(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    # A probe that takes minutes, so that the crash falls into the trial.
    deployment = Deployment(cluster, namespace).create(spec(rollout={"probe": {"prompts": 64, "promptsPerMinute": 20}}))
    deployment.wait_done()
    deployment.patch(drafter={"revision": NEW})
    candidate = deployment.wait_phase("Analyzing")["revision"]
    pod = next(pod for pod in deployment.children("pods") if pod["metadata"]["name"].startswith(f"{candidate}-"))
    simulator.ask("POST", f"http://{pod['status']['podIP']}:30000/sim/crash", {"code": 1})
    rollout = deployment.wait_phase("RolledBack", "Completed", "Held")
    assert (rollout["phase"], rollout["reason"]) == ("RolledBack", "AnalysisFailed")
    restarts = deployment.verdicts()["restarts"]
    assert (restarts["verdict"], restarts["candidate"], restarts["limit"]) == ("Failed", 1, 0)


def test_a_block_size_is_judged_by_speed_and_not_by_acceptance_length(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    wider = Deployment(cluster, namespace, "wider").create(spec(blockSize=8))
    narrower = Deployment(cluster, namespace, "narrower").create(spec(blockSize=16))
    for deployment, block in ((wider, 16), (narrower, 2)):
        deployment.wait_done()
        deployment.patch(blockSize=block)
    assert wider.wait_phase("Completed", "RolledBack", "Held")["phase"] == "Completed"
    rollout = narrower.wait_phase("Completed", "RolledBack", "Held")
    assert (rollout["phase"], rollout["reason"]) == ("RolledBack", "AnalysisFailed")
    for deployment, speed in ((wider, "Successful"), (narrower, "Failed")):
        verdicts = deployment.verdicts()
        assert verdicts["acceptanceLength"]["gates"] is False
        assert "probeAcceptanceLength" not in verdicts
        assert verdicts["probeSpeed"]["verdict"] == speed
        assert verdicts["text"]["verdict"] == "Successful"
    assert narrower.status()["speculation"]["blockSize"] == 16


def test_without_automatic_rollback_a_failed_candidate_is_held_and_a_human_may_promote_it(
    start_operator: StartOperator, simulator: SimulatorProcess, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec(rollout={"automaticRollback": False, **BRIEF}))
    deployment.wait_done()
    with played_with(simulator, namespace, {"bbb*": {"acceptance": 0.0}}):
        deployment.patch(drafter={"revision": NEW})
        rollout = deployment.wait_phase("Held", "RolledBack", "Completed")
        assert (rollout["phase"], rollout["reason"]) == ("Held", "AnalysisFailed")
        candidate = rollout["revision"]
        stalled = deployment.condition("Stalled")
        assert stalled[:2] == ("True", "AnalysisFailed")
        assert f"serving.dflash.io/promote={candidate}" in stalled[2]
        assert f"serving.dflash.io/abort={candidate}" in stalled[2]
        assert deployment.states() == ["Stable", "Candidate"]
        assert len(deployment.pod_uids(candidate)) == 1
        deployment.annotate(promote=candidate)
        deployment.wait_done()
    assert deployment.status()["stableRevision"] == candidate
    assert deployment.revisions()[candidate]["reason"] == "PromotedByHand"
    assert deployment.history(candidate)[-1] == ("User", "Stable", "PromotedByHand")


def test_what_cannot_change_how_an_engine_performs_is_not_compared(start_operator: StartOperator, cluster: Cluster, namespace: str) -> None:
    start_operator(**QUICK)
    deployment = Deployment(cluster, namespace).create(spec())
    deployment.wait_done()
    deployment.patch(podTemplate={"metadata": {"labels": {"team": "ml"}}})
    deployment.wait_done()
    assert deployment.revisions()[deployment.status()["stableRevision"]]["reason"] == "NotCompared"
    assert "RolloutAnalyzing" not in [reason for reason, _ in deployment.events()]


def test_past_its_deadline_a_rollout_without_a_verdict_ends_as_the_spec_says(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    start_operator(**QUICK)
    ends = {"Promote": "Completed", "Rollback": "RolledBack"}
    deployments = {
        wish: Deployment(cluster, namespace, wish.lower()).create(
            spec(rollout={"deadline": "3s", "onInconclusive": wish, "probe": UNJUDGED["probe"]})
        )
        for wish in ends
    }
    for deployment in deployments.values():
        deployment.wait_done()
        deployment.patch(drafter={"revision": NEW})
    for wish, deployment in deployments.items():
        rollout = deployment.wait_phase("Completed", "RolledBack", "Held")
        assert rollout["phase"] == ends[wish]
        assert deployment.verdicts()["acceptanceLength"]["verdict"] == "Inconclusive"
        assert deployment.history(rollout["revision"])[-1][2] == "Inconclusive"
