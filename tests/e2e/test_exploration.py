"""An exploratory trial on engines under load: what it shows of the known and the unknown, what becomes of it, and where none is made."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from dflash_controller.cli.replay import decisions, differences
from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.operator_process import OperatorProcess
from testbed.pod_watch import PodWatch, breaks
from testbed.traffic.mix import Mix
from testbed.traffic.service import ServiceTraffic
from testbed.waiting import wait_until
from tests.conftest import StartOperator
from tests.support.deployment import REVISION, Deployment, followed, rollout_spec
from tests.support.releases import default_release

pytestmark = pytest.mark.long

MODEL = "Qwen/Qwen3.5-9B"
MIX = Mix({"gsm8k": 1.0, "mt-bench": 1.0}, max_tokens=120, prompt_tokens=24)
"""A verdict on a replica takes 240 answers, so they are short. While a client gets ready for the next one, the load is less."""
SETTINGS: dict[str, Any] = {
    "log_format": "json",
    "warm_up_seconds": "2",
    "tuning_seconds": "2",
    "tuning_slot_seconds": "2",
    "learned_record_seconds": "2",
}
PER_REPLICA = 2
"""Clients of each replica. Of this load the tuner infers from block size 16 that 8 gives about 2 % more, with an error of 16 %; the
simulator's engines are 10 % slower with it."""
LASTED_S = 6 * 3600
"""How long such load has lasted, as the stored knowledge is made to say: the trial's gain counts over as long again."""
PATIENCE_S = 60


def spec(mode: str, replicas: int, surge: int) -> dict[str, Any]:
    """A hybrid target on vLLM, of which load at one block size does not show what another gives."""
    return rollout_spec(
        replicas,
        engine={"name": "vllm", "version": default_release("vllm"), "maxConcurrency": 32},
        blockSize=16,
        tuning={"blockSizes": [8, 16], "window": "6s", "minDwell": "1s", "mode": mode},
        podTemplate={"terminationGracePeriodSeconds": 30, "metadata": {"annotations": {"sim/exit-after": "6"}}},
        rollout={
            "maxSurge": surge,
            "maxUnavailable": 0 if surge else 1,
            "analysis": each_gate(window="5s", interval="1s") | {"speed": {"interval": "1s"}},
            "probe": {"enabled": False},
        },
    )


def traffic_on(deployment: Deployment, replicas: int) -> ServiceTraffic:
    clients = PER_REPLICA * replicas
    return ServiceTraffic(deployment.cluster, deployment.namespace, deployment.name, model=MODEL, concurrency=clients, mix=MIX)


def stored(deployment: Deployment) -> dict[str, Any]:
    """What the tuner has stored, once the load of this deployment has favoured a block size."""

    def favoured() -> dict[str, Any] | None:
        learned = deployment.learned()
        return learned if learned and learned["ledger"]["favoured"][0] else None

    return wait_until(favoured, f"the tuner to store what {deployment.name} shows", PATIENCE_S, 0.5)


def restart(operator: OperatorProcess, *edited: tuple[Deployment, dict[str, Any]]) -> None:
    """Has an operator start with other stored knowledge than it wrote: one that runs would overwrite it."""
    operator.kill()
    for deployment, learned in edited:
        deployment.edit_learned(learned)
        if deployment.tuning():
            # One reason to change nothing replaces another in the status once an hour.
            deployment.patch_status(tuning={"decidedAt": "2026-01-01T00:00:00Z"})
    operator.start().wait_to_lead()


def lasting(learned: dict[str, Any]) -> dict[str, Any]:
    """The same knowledge of a load that lasts for hours, whichever block size the noise of a few seconds makes it favour."""
    ledger = {"favoured": [16, time.time() - LASTED_S], "stays": [[8, [LASTED_S]], [16, [LASTED_S]]]}
    return learned | {"ledger": learned["ledger"] | ledger}


def without(learned: dict[str, Any], block: int) -> dict[str, Any]:
    """The same knowledge without what a block size has shown."""
    pools = {name: [pool for pool in learned[name] if pool[0] != block] for name in ("pools", "earlier", "borrowed")}
    return lasting(learned | pools | {"decays": []})


def decided(operator: OperatorProcess, deployment: Deployment, reason: str) -> str:
    """Waits until this run of the operator has decided something for this reason. Returns its message."""

    def told() -> dict[str, str]:
        lines = [json.loads(line) for line in operator.output().splitlines() if '"decision"' in line]
        return {line["decision"]["reason"]: line["message"] for line in lines if line["decision"]["deployment"] == deployment.name}

    try:
        return wait_until(lambda: told().get(reason), "", PATIENCE_S, 1.0)
    except TimeoutError:
        raise TimeoutError(f"the tuner of {deployment.name} did not decide {reason}: {told()}") from None


def wait_gauge(operator: OperatorProcess, deployment: Deployment, metric: str, told: Callable[[float], bool], **labels: str) -> None:
    """Waits until a metric of the operator about a deployment says this."""
    of = {"deployment": deployment.name, "namespace": deployment.namespace, **labels}

    def says() -> bool:
        found = value(operator, metric, **of)
        return found is not None and told(found)

    wait_until(says, f"{metric} of {deployment.name}", PATIENCE_S, 0.5)


def value(operator: OperatorProcess, metric: str, **wanted: str) -> float | None:
    """The value of the first metric of the operator with these labels; None where there is none."""
    for line in operator.metrics().splitlines():
        found = re.fullmatch(rf"{metric}{{(.*)}} (\S+)", line)
        if found and wanted.items() <= dict(re.findall(r'(\w+)="([^"]*)"', found[1])).items():
            return float(found[2])
    return None


def is_of(pod: dict[str, Any], revision: str) -> bool:
    return revision.endswith(f"-{pod['metadata']['labels'][REVISION]}")


def test_an_uncertain_gain_is_measured_on_one_replica_and_at_such_load_once_a_week(
    start_operator: StartOperator, cluster: Cluster, namespace: str, pod_watch: PodWatch
) -> None:
    operator = start_operator(**SETTINGS)
    deployment = Deployment(cluster, namespace).create(spec("Auto", 2, 1))
    deployment.wait_done()
    with traffic_on(deployment, 2) as traffic:
        learned = stored(deployment)
        assert {pool[0] for pool in learned["pools"]} == {16}
        with followed(deployment, "pods") as pods:
            restart(operator, (deployment, lasting(learned)))
            tried = deployment.wait_phase("Preparing", "Canary", "Analyzing", timeout=PATIENCE_S)["revision"]
            assert deployment.history(tried) == [("Tuner", "Candidate", "Exploring")]
            asked = next(message for reason, message in deployment.events() if reason == "TunerExploring")
            assert "The gain of block 8 is not known" in asked
            assert re.search(r"[+-]\d\.\d % is inferred, with an error of 1\d %", asked), asked
            assert re.search(r"A trial on one replica would cost \d+ s of full speed and is expected to gain \d+ s", asked), asked
            assert re.search(r"over the [56]\.\d hours that such load is expected to last", asked), asked
            found = deployment.wait_tuning(PATIENCE_S, state="Frozen", reason="Frozen")
            assert f"{tried} is on trial because its gain is not known" in found["message"]

            deployment.wait_states("Stable", "Failed", timeout=PATIENCE_S)
            deployment.wait_done()
            known = deployment.wait_tuning(PATIENCE_S, state="Tuning", reason="Tuned", recommendation="16")["inputs"]
        assert len({pod.object["metadata"]["uid"] for pod in pods if is_of(pod.object, tried)}) == 1, "one replica is on trial"
        assert deployment.history(tried)[-1] == ("Rollback", "Failed", "NotFaster")
        assert any(reason == "NotFaster" and "its gain was not known" in message for reason, message in deployment.events())
        assert deployment.status()["speculation"]["label"] == "16"

        # The verdict was no, and the measurement is in the curves all the same: what was inferred with 16 % is known.
        assert known["gainMeasured8"] == 1
        assert known["gainErrorPercent8"] < 10
        assert known["gainPercent8"] < -3, "the simulator's engines are about 10 % slower with it"
        wait_gauge(operator, deployment, "dflash_tuner_gain_measured", lambda found: found == 1, block_size="8")
        wait_gauge(operator, deployment, "dflash_tuner_gain_error_percent", lambda found: found < 10, block_size="8")
        assert value(operator, "dflash_tuner_decisions_total", reason="Exploring") == 1
        made = list(decisions(operator.output().splitlines()))
        assert not [found for decision in made if (found := differences(decision))], "each decision can be made again from its line"

        # Without the measurement it is unknown again, but such a trial was made in this week.
        learned = deployment.learned()
        assert 8 in {pool[0] for pool in learned["pools"] if pool[1] >= 3}
        restart(operator, (deployment, without(learned, 8)))
        message = decided(operator, deployment, "GainUnknown")
        assert "1 were made at such load in seven days, and spec.tuning.exploration.maxTrialsPerWeek is 1" in message
        wait_gauge(operator, deployment, "dflash_tuner_gain_measured", lambda found: found == 0, block_size="8")
        assert deployment.states() == ["Stable", "Failed"], deployment.tuning()

        # The week is the only obstacle.
        operator.kill()
        deployment.edit_history(tried, lambda entry: entry | {"at": "2026-01-01T00:00:00Z"})
        operator.start().wait_to_lead()
        again = deployment.wait_phase("Preparing", "Canary", "Analyzing", timeout=PATIENCE_S)
        assert again["revision"] == tried
    assert traffic.failed == 0, traffic.log.errors
    assert not breaks(pod_watch.moments(namespace, deployment.name), least=2, most=3)


def test_where_no_trial_may_be_made_the_status_says_what_is_unknown_and_what_a_trial_would_cost(
    start_operator: StartOperator, cluster: Cluster, namespace: str
) -> None:
    operator = start_operator(**SETTINGS)
    advised = Deployment(cluster, namespace, "advised").create(spec("Advise", 2, 1))
    alone = Deployment(cluster, namespace, "alone").create(spec("Auto", 1, 0))
    advised.wait_done()
    alone.wait_done()
    with traffic_on(advised, 2), traffic_on(alone, 1):
        restart(operator, *[(deployment, lasting(stored(deployment))) for deployment in (advised, alone)])
        hindrances = {advised: "spec.tuning.mode is Advise", alone: "the only replica would be on trial; add a replica, or surge"}
        for deployment, hindrance in hindrances.items():
            unknown = deployment.wait_tuning(PATIENCE_S, reason="GainUnknown")
            assert unknown["state"] == ("Advising" if deployment is advised else "Tuning")
            assert "A trial on one replica would cost" in unknown["message"]
            assert unknown["message"].endswith(f"None is made: {hindrance}")
            figures = unknown["inputs"]
            assert (figures["gainMeasured8"], figures["trialBlock"]) == (0, 8)
            assert 10 < figures["gainErrorPercent8"] < 25
            assert figures["gainPercent8"] < 5
            assert figures["trialValueSeconds"] > 1.5 * figures["trialCostSeconds"] > 0
            assert deployment.condition("TuningReady")[:2] == ("True", "GainUnknown")
            wait_gauge(operator, deployment, "dflash_tuner_gain_measured", lambda found: found == 0, block_size="8")
            wait_gauge(operator, deployment, "dflash_tuner_input", lambda found: found > 0, name="trialValueSeconds")
    for deployment in hindrances:
        assert deployment.states() == ["Stable"]
        assert deployment.status()["speculation"]["label"] == "16"
