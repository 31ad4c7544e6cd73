"""What the operator says about itself: metrics, health, log lines; and how one reconcile's failure is handled."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import aiohttp
import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.api.speculation import Fixed
from dflash_controller.api.status import RolloutPhase
from dflash_controller.cluster.errors import Invalid, LostLeadership, PlanConflict, Unavailable
from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.logs import JsonFormatter
from dflash_controller.runtime.metrics import Metrics, StatusMetrics
from dflash_controller.runtime.queue import WorkQueue
from dflash_controller.runtime.server import HealthServer
from dflash_controller.runtime.worker import Worker
from dflash_controller.tuner import policy
from dflash_controller.tuner.decision import TunerDecision
from tests.support.virtual_time import run_in_virtual_time

KEY = Key("ns", "demo")


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_metrics_and_health_are_served() -> None:
    metrics = Metrics()
    wrong: list[str | None] = [None]
    async with HealthServer(metrics, host="127.0.0.1", port=0) as server:
        assert await fetch(server.port, "/healthz") == (200, "[+] running\n")
        server.live_while("list", lambda: None)
        server.ready_while("API server", lambda: wrong[0])
        assert await fetch(server.port, "/readyz") == (200, "[+] API server\n")
        wrong[0] = "silent"
        assert await fetch(server.port, "/readyz") == (503, "[-] API server: silent\n")
        assert await fetch(server.port, "/healthz") == (200, "[+] list\n")
        status, page = await fetch(server.port, "/metrics")
    assert status == 200
    assert 'dflash_build_info{python="' in page


def lines(metrics: Metrics) -> list[str]:
    return [line for line in metrics.page().decode().splitlines() if not line.startswith("#")]


def test_what_a_status_says_can_be_alerted_on() -> None:
    metrics = Metrics()
    condition = {"type": "Stalled", "status": "True", "reason": "EngineFailing", "lastTransitionTime": "2026-01-01T00:01:40Z"}
    notice = {"reason": "FieldFight", "message": "one"}
    shown = StatusMetrics("Completed", {}, (), [condition], [notice, notice | {"message": "two"}], {"desired": 3, "serving": 2}, 900, 240.5)
    metrics.show(KEY, shown)
    found = lines(metrics)
    of = 'deployment="demo",namespace="ns"'
    assert (
        'dflash_condition_since_timestamp_seconds{deployment="demo",namespace="ns",reason="EngineFailing",status="True",type="Stalled"} '
        "1.7672257e+09"
    ) in found
    assert 'dflash_notice{deployment="demo",namespace="ns",reason="FieldFight"} 1.0' in found
    assert [line for line in found if line.startswith("dflash_replicas")] == [
        f"dflash_replicas_desired{{{of}}} 3.0",
        f"dflash_replicas_serving{{{of}}} 2.0",
    ]
    assert f"dflash_startup_budget_seconds{{{of}}} 900.0" in found
    assert f"dflash_startup_seconds{{{of}}} 240.5" in found
    assert not any(line.startswith("dflash_max_concurrency") for line in found), "no revision is active yet"
    metrics.show(KEY, StatusMetrics("Completed", {}, max_concurrency={"asked": 32}))
    assert {line for line in lines(metrics) if line.startswith("dflash_max_concurrency")} == {
        f'dflash_max_concurrency{{deployment="demo",limit="{limit}",namespace="ns"}} 32.0' for limit in ("asked", "effective")
    }
    metrics.show(KEY, StatusMetrics("Completed", {}, max_concurrency={"asked": 32, "effective": 16}))
    assert 'dflash_max_concurrency{deployment="demo",limit="effective",namespace="ns"} 16.0' in lines(metrics)
    metrics.forget(KEY)
    assert not any("demo" in line for line in lines(metrics))


def test_series_of_a_deployment_go_with_it() -> None:
    metrics = Metrics()
    verdict = {"metric": "speed", "verdict": "Failed", "candidate": 60.0, "stable": 700.0, "limit": 5.0}
    metrics.show(KEY, StatusMetrics("Analyzing", {"demo-a": "stable", "demo-b": "candidate"}, [verdict]))
    metrics.show(Key("ns", "other"), StatusMetrics("Completed", {}))
    assert 'dflash_deployments{phase="Completed"} 1.0' in lines(metrics)
    assert 'dflash_revision_info{deployment="demo",namespace="ns",revision="demo-b",role="candidate"} 1.0' in lines(metrics)
    assert 'dflash_rollout_phase{deployment="demo",namespace="ns",phase="Analyzing"} 1.0' in lines(metrics)
    assert 'dflash_rollout_verdict{deployment="demo",metric="speed",namespace="ns",verdict="Failed"} 1.0' in lines(metrics)
    assert 'dflash_rollout_metric{deployment="demo",metric="speed",namespace="ns",side="stable"} 700.0' in lines(metrics)
    metrics.show(KEY, StatusMetrics("RollingBack", {"demo-b": "stable"}, [verdict]))
    assert 'dflash_revision_info{deployment="demo",namespace="ns",revision="demo-a",role="stable"} 1.0' not in lines(metrics)
    assert 'dflash_rollout_phases_total{phase="RollingBack"} 1.0' in lines(metrics)
    metrics.forget(KEY)
    metrics.forget(KEY)
    assert not [line for line in lines(metrics) if 'deployment="demo"' in line]
    assert 'dflash_deployments{phase="Completed"} 1.0' in lines(metrics)


def test_every_counter_with_a_closed_set_of_values_has_all_its_series_from_the_start() -> None:
    """``increase`` sees no first count of a series that begins at 1: after a rollback it would stay 0."""
    metrics = Metrics()
    begun = {line for line in lines(metrics) if line.startswith(("dflash_reconcile_total", "dflash_rollout", "dflash_tuner_decisions"))}
    phases = {f'dflash_rollout_phases_total{{phase="{phase}"}} 0.0' for phase in ("None", *get_args(RolloutPhase))}
    results = {f'dflash_reconcile_total{{result="{result}"}} 0.0' for result in ("success", "conflict", "error")}
    reasons = set(re.findall(r"Reason[.]([A-Z_]+)", Path(policy.__file__).read_text(encoding="utf-8")))
    decisions = {f'dflash_tuner_decisions_total{{reason="{Reason[reason].value}"}} 0.0' for reason in reasons}
    assert begun == phases | results | decisions
    counters = {family.name for family in metrics.registry.collect() if family.type == "counter" and family.name.startswith("dflash_")}
    open_sets = {"dflash_reconcile_errors", "dflash_api_requests"}  # kinds of errors; verbs, kinds and codes
    assert counters - open_sets == {"dflash_reconcile", "dflash_rollout_phases", "dflash_tuner_decisions"}


def test_the_newest_rollout_names_its_revision_and_who_asked_for_it() -> None:
    metrics = Metrics()
    metrics.show(KEY, StatusMetrics("Analyzing", {"r1": "stable", "r2": "candidate"}, rolled_out="r2", origin="Tuner"))
    metrics.show(Key("ns", "other"), StatusMetrics("None", {}))
    found = [line for line in lines(metrics) if line.startswith("dflash_rollout_info")]
    assert found == ['dflash_rollout_info{deployment="demo",namespace="ns",origin="Tuner",revision="r2"} 1.0']


def test_a_log_line_is_one_json_object_with_the_extra_fields() -> None:
    record = logging.LogRecord("x.y", logging.ERROR, "f", 1, "it %s\nbroke", ("really",), None)
    record.deployment = "ns/demo"
    try:
        raise ValueError("why")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    text = JsonFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["severity"], line["logger"], line["message"], line["deployment"]) == ("ERROR", "x.y", "it really\nbroke", "ns/demo")
    assert "ValueError: why" in line["exception"]
    assert line["timestamp"].endswith("Z")


class Script:
    """Reconciles by a list of outcomes; the last one stays."""

    def __init__(self, *outcomes: Callable[[], float | None]) -> None:
        self.outcomes = list(outcomes)
        self.times: list[float] = []

    async def reconcile(self, key: Key) -> float | None:
        self.times.append(asyncio.get_running_loop().time())
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        return outcome()


def failing(error: Exception) -> Callable[[], None]:
    def outcome() -> None:
        raise error

    return outcome


async def play(script: Script, metrics: Metrics, seconds: float) -> list[float]:
    queue: WorkQueue[Key] = WorkQueue(first_backoff_s=1.0, jitter=lambda: 1.0)
    queue.add(KEY)
    running = asyncio.create_task(queue.run(2, Worker(script, queue, metrics)))
    await asyncio.sleep(seconds)
    queue.close()
    await running
    return script.times


def test_a_reconcile_that_asks_for_another_look_gets_it() -> None:
    metrics = Metrics()
    assert run_in_virtual_time(play(Script(lambda: 0.0, lambda: 30.0, lambda: None), metrics, 100.0)) == [0.0, 0.0, 30.0]
    assert 'dflash_reconcile_total{result="success"} 3.0' in lines(metrics)


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (Unavailable(503, "ServiceUnavailable", "later"), 'dflash_reconcile_errors_total{error="Unavailable"} 3.0'),
        (Invalid(422, "Invalid", "no"), 'dflash_reconcile_errors_total{error="Invalid"} 3.0'),
        (KeyError("bug"), 'dflash_reconcile_errors_total{error="KeyError"} 3.0'),
    ],
)
def test_a_failure_is_counted_and_tried_again_later_and_later(error: Exception, counted: str) -> None:
    metrics = Metrics()
    script = Script(failing(error), failing(error), failing(error), lambda: None)
    assert run_in_virtual_time(play(script, metrics, 100.0)) == [0.0, 1.0, 3.0, 7.0]
    assert counted in lines(metrics)


def test_a_conflict_is_planned_again_almost_at_once_and_less_eagerly_if_it_goes_on() -> None:
    metrics = Metrics()
    script = Script(*[failing(PlanConflict("moved"))] * 3, lambda: None)
    times = run_in_virtual_time(play(script, metrics, 100.0))
    assert times == pytest.approx([0.0, 0.05, 0.15, 0.35])
    assert 'dflash_reconcile_total{result="conflict"} 3.0' in lines(metrics)


def test_a_reconcile_without_leadership_is_not_tried_again() -> None:
    metrics = Metrics()
    assert run_in_virtual_time(play(Script(failing(LostLeadership("gone"))), metrics, 100.0)) == [0.0]


def test_speeds_predicted_and_measured_stand_side_by_side_with_the_load_at_which_the_choice_turns() -> None:
    metrics, key = Metrics(), Key("models", "chat")
    numbers = {"tokensPerSecond8": 900.0, "tokensPerSecond16": 1000.0, "measuredTokensPerSecond16": 980.0, "concurrency": 8.0}
    metrics.tuned(key, TunerDecision("Tuning", Reason.TUNED, "words", Fixed(16), None, {**numbers, "crossoverConcurrency": 11.5}))
    of = 'deployment="chat",namespace="models"'
    told = [line for line in lines(metrics) if line.startswith("dflash_tuner_")]
    assert 'dflash_tuner_predicted_tokens_per_second{block_size="8",' + of + "} 900.0" in told
    assert 'dflash_tuner_predicted_tokens_per_second{block_size="16",' + of + "} 1000.0" in told
    assert 'dflash_tuner_measured_tokens_per_second{block_size="16",' + of + "} 980.0" in told
    assert "dflash_tuner_crossover_concurrency{" + of + "} 11.5" in told
    assert [line for line in told if line.startswith("dflash_tuner_input")] == [
        'dflash_tuner_input{deployment="chat",name="concurrency",namespace="models"} 8.0'
    ]
    metrics.tuned(key, TunerDecision("Tuning", Reason.TUNED, "words", Fixed(16), None, numbers))
    assert not [line for line in lines(metrics) if line.startswith("dflash_tuner_crossover_concurrency{")]
