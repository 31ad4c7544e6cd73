"""The phases of the loop. Each returns its part of the report."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from testbed.gpu_loop.clients import Words, client_figures
from testbed.gpu_loop.product import Pages, predicted, told
from testbed.gpu_loop.report import all_levels, measured
from testbed.gpu_loop.run import Run
from testbed.gpu_loop.setup import BLOCKS
from testbed.process_node.programs import IMPOSED
from testbed.traffic.mix import Mix
from testbed.traffic.over_http import Client, Target

Object = dict[str, Any]
_SETTLE_S = 4.0
_WARM = 1.2
"""Warm-up of an engine under load before it is measured, in terms of the operator's setting, with some seconds until clients have begun."""
_ADVISE_S = 22.0
"""Seconds until the tuner's window, and the load sample at its beginning, are of this load alone."""
_ENDS = ("Completed", "RolledBack", "Held", "Superseded")
_TRIAL_CLIENTS = 8
_WORTH = 0.04
"""Lead of a block size, as a share, that a trial of minutes can show."""
_PATIENT_S, _STAYS_S = 240.0, 60.0
_DRAIN_CLIENTS = 8
_DRAIN_BEYOND_S = 8.0
"""Seconds that requests under way are to last beyond the preStop pause."""


def serve(run: Run) -> Object:
    """Creates the deployment and waits until it is Ready."""
    begun = time.monotonic()
    spec = run.setup.spec(run.product)
    manifest = {"apiVersion": "serving.dflash.io/v1alpha1", "kind": "DFlashDeployment", "metadata": {"name": run.deployment.name}}
    path = "/apis/serving.dflash.io/v1alpha1/namespaces/default/dflashdeployments"
    run.cluster.api.request("POST", path, {**manifest, "spec": spec})
    ready = run.wait(_ready, run.remaining_s())
    return {
        "ready": ready,
        "seconds": time.monotonic() - begun,
        "spec": spec,
        "budget_s": run.deployment.status().get("startupBudgetSeconds"),
    }


def load(run: Run) -> Object:
    """Measures every level of load at the block size in use, after a warm-up under the highest."""
    block = _block(run)
    run.timeline.note("load", f"warm-up: {max(run.setup.levels)} clients at block {block}")
    run.resize(max(run.setup.levels))
    time.sleep(_WARM * run.setup.warm_up_s)
    levels: list[Object] = []
    for clients in run.setup.levels:
        if run.remaining_s() < run.level_s + _SETTLE_S:
            break
        levels.append(_level(run, block, clients))
        run.report.add(f"load at block {block}", {"levels": levels})
    return {"levels": levels}


def change_by_hand(run: Run) -> Object:
    """Asks for the other block size, so that both are measured. Where the tuner has changed it already, nothing is asked."""
    current = _block(run)
    if not any(level["block"] == current for level in all_levels(run.report.content)):
        return {"skipped": f"block {current} is in use and not measured yet"}
    other = next(block for block in BLOCKS if block != current)
    run.resize(_TRIAL_CLIENTS)
    return _follow(run, f"spec.blockSize: {other}", lambda: run.deployment.patch({"blockSize": other}), limit_s=_limit(run, 1, 90))


def advise(run: Run) -> Object:
    """Notes what the tuner, in mode Advise, says at each level now that both blocks were measured."""
    said = []
    for clients in run.setup.levels:
        if run.remaining_s() < 30:
            break
        run.resize(clients)
        time.sleep(min(run.level_s, _ADVISE_S))
        now = told(run.deployment, run.operator.metrics())
        said.append({"clients": clients, "block": _block(run), "told": now, "predicted": _text_keys(predicted(now))})
    return {"said": said}


def auto(run: Run) -> Object:
    """Lets the tuner act at a load for which the other block size was faster, if there is one.

    Where the other one is not measured yet, the load is the one for which the tuner predicts most of it.
    """
    current, levels = _block(run), all_levels(run.report.content)
    other = next(block for block in BLOCKS if block != current)

    known = any(level["block"] == other for level in levels)
    told_of = {level["clients"]: level["predicted"] for level in levels if level["block"] == current}

    def lead(clients: int) -> float:
        guesses = told_of.get(clients, {})
        there = measured(levels, other, clients) if known else guesses.get(str(other))
        here = measured(levels, current, clients) if known else guesses.get(str(current))
        return there / here if there and here else 0.0

    # A trial needs traffic on both sides: with one client it decides little.
    enough = [clients for clients in run.setup.levels if clients >= _TRIAL_CLIENTS]
    busy = [clients for clients in enough if lead(clients) > 1 + _WORTH]
    clients = max(busy or (run.setup.levels if known else enough) or run.setup.levels, key=lead)
    gain = 100 * (lead(clients) - 1)
    run.resize(clients)
    how = "measured" if known else "predicted"
    run.timeline.note("load", f"{clients} clients; block {other} {how} {gain:+.1f} % against {current}")
    # Where the other block is known to be no faster, the right decision is to stay, and a minute shows it.
    patience_s = _PATIENT_S if gain > 100 * _WORTH or not known else _STAYS_S
    found = _follow(
        run,
        f"Auto at {clients} clients",
        lambda: run.deployment.patch({"tuning": {"mode": "Auto"}}),
        limit_s=_limit(run, 1, 150),
        begin_within_s=min(patience_s, _limit(run, 1, 150)),
    )
    after = _block(run)
    run.deployment.patch({"tuning": {"mode": "Advise"}})
    return {**found, "clients": clients, "other": other, f"gain_{how}_percent": gain, "block_after": after}


def collapse(run: Run) -> Object:
    """Tries a drafter whose drafts are refused."""
    if run.setup.collapsed is None:
        return {"skipped": "there is no drafter that collapses for models with weights"}
    run.resize(_TRIAL_CLIENTS)
    good = run.setup.drafter_name
    found = _follow(
        run,
        f"spec.drafter.model: {run.setup.collapsed}",
        lambda: run.deployment.patch({"drafter": {"model": run.setup.collapsed}}),
        limit_s=_limit(run, 0, 60),
    )
    run.deployment.patch({"drafter": {"model": good}})
    return {**found, "ready_again": run.wait(_ready, 60)}


def drain(run: Run) -> Object:
    """Takes one replica away under load: requests under way must end. The last one gets no new requests once it is terminating."""
    pods = {pod["metadata"]["uid"]: pod for pod in run.deployment.pods()}
    pause_s = next(iter(pods.values()))["spec"]["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    clients = [level["client"] for level in all_levels(run.report.content) if level["clients"] == _DRAIN_CLIENTS]
    speed = clients[-1]["tokens_per_second"] / _DRAIN_CLIENTS if clients else 200.0
    tokens = int(min(16000.0, max(500.0, speed * (pause_s + _DRAIN_BEYOND_S))))
    before, wanted = run.load.failed, _DRAIN_CLIENTS * len(pods)
    run.resize(2)
    long = _Long(run.deployment.urls(), run.setup.target, wanted, tokens)
    run.others.append(long.log)
    long.start()
    time.sleep(2.0)
    begun = time.monotonic()
    run.deployment.patch({"replicas": len(pods) - 1})
    _wait_for(lambda: len(run.deployment.pods()) < len(pods), run.remaining_s())
    if len(pods) == 1:
        run.resize(0)
    (uid,) = pods.keys() - {pod["metadata"]["uid"] for pod in run.deployment.pods()}
    run.timeline.note("drain", f"a pod is terminating; {wanted} requests of {tokens} tokens are under way")
    gone = _wait_for(lambda: not _pod_exists(run, uid), min(300.0, run.remaining_s()))
    long.join(60.0)
    run.resize(0)
    name = f"{pods[uid]['metadata']['namespace']}/{pods[uid]['metadata']['name']}"
    process: Object = next((item for item in reversed(run.node.ran()) if item["pod"] == name), {})
    return {
        "what": f"{wanted} requests of {tokens} tokens under way",
        "ended": "pod gone" if gone else "pod still there",
        "seconds": time.monotonic() - begun,
        "requests_under_way": wanted,
        "answered": len(long.log.completions),
        "whole": sum(one.tokens == tokens for one in long.log.completions),
        "errors": dict(long.log.errors),
        "failed": sum(long.log.errors.values()) + run.load.failed - before,
        "pre_stop_s": pause_s,
        "exit_code": process.get("exitCode"),
        "sigterm_to_end_s": process["endedAt"] - process["sigtermAt"] if {"endedAt", "sigtermAt"} <= process.keys() else None,
        "message": f"exit code {process.get('exitCode')}, {len(long.log.completions)} of {wanted} answered",
    }


PHASES: Mapping[str, Callable[[Run], Object]] = {
    "serve": serve,
    "load": load,
    "change by hand": change_by_hand,
    "load again": load,
    "advise": advise,
    "auto": auto,
    "collapse": collapse,
    "drain": drain,
}
_STARTS: Mapping[str, int] = {"change by hand": 1, "auto": 2, "collapse": 1}
"""Starts of an engine that a phase needs. After a change of the tuner, the drafter that collapses is to be tried too."""
_LEAST_S: Mapping[str, float] = {
    "load": 40,
    "change by hand": 100,
    "load again": 40,
    "advise": 40,
    "auto": 150,
    "collapse": 90,
    "drain": 60,
}


def least_s(name: str, starting_s: float) -> float:
    """Returns the seconds of the budget below which a phase is not begun, where an engine starts in ``starting_s`` seconds."""
    return _LEAST_S.get(name, 0.0) + _STARTS.get(name, 0) * starting_s


def _level(run: Run, block: int, clients: int) -> Object:
    traffic = run.load
    run.timeline.note("load", f"{clients} clients at block {block}")
    run.resize(clients)
    time.sleep(_SETTLE_S)
    failed = traffic.failed
    pages = Pages(run.setup.engine, run.deployment.urls(), run.setup.warm_up_s)
    with pages:
        start = time.monotonic()
        time.sleep(run.level_s)
        end = time.monotonic()
    now = told(run.deployment, run.operator.metrics())
    # Requests under way at the end count with their share once they are answered.
    client = client_figures(traffic.log, run.parts, traffic.began_s, start, end, run.setup.replicas)
    time.sleep(min(15.0, 0.5 + 1.5 * (client["latency_mean_s"] or 1.0)))
    client = client_figures(traffic.log, run.parts, traffic.began_s, start, end, run.setup.replicas)
    return {
        "block": block,
        "clients": clients,
        "client": client,
        "product": pages.figures(),
        "told": now,
        "predicted": _text_keys(predicted(now)),
        "imposed_acceptance": _imposed(run, block),
        "failed": traffic.failed - failed,
    }


def _imposed(run: Run, block: int) -> float | None:
    """Returns the acceptance length that the drafter's folder imposes; None with weights, and with the simulator, which has its own."""
    file = run.setup.models / run.setup.drafter_name / IMPOSED
    if run.setup.simulator or not file.exists():
        return None
    rates: list[float] = json.loads(file.read_text())["acceptance_rates"]
    return 1.0 + sum(rates[: block - 1])


def _follow(run: Run, what: str, change: Callable[[], object], *, limit_s: float, begin_within_s: float = 60.0) -> Object:
    """Makes a change and follows the rollout that comes of it to its end. Returns how it ended."""
    before = _identity(run.deployment.status())
    failed, answered = run.load.failed, dict(run.load.answered())
    run.timeline.note("change", what)
    begun = time.monotonic()
    change()
    result: Object = {"what": what}
    if not run.wait(lambda status: _identity(status) not in (before, None), begin_within_s):
        status = run.deployment.status()
        return {
            **result,
            "ended": "no rollout",
            "seconds": time.monotonic() - begun,
            "message": (status.get("tuning") or {}).get("message"),
            "tuning": status.get("tuning"),
        }
    mine = _identity(run.deployment.status())
    ended = run.wait(lambda status: _identity(status) != mine or status["rollout"]["phase"] in _ENDS, limit_s)
    rollout = run.deployment.status().get("rollout") or {}
    candidate = str(rollout.get("revision", "")).removeprefix(f"{run.deployment.name}-")
    return {
        **result,
        "ended": rollout.get("phase") if ended else f"still {rollout.get('phase')}",
        "reason": rollout.get("reason"),
        "message": rollout.get("message"),
        "seconds": time.monotonic() - begun,
        "met": run.load.answered().get(candidate, 0) - answered.get(candidate, 0),
        "answered": sum(run.load.answered().values()) - sum(answered.values()),
        "failed": run.load.failed - failed,
        "analysis": rollout.get("analysis"),
        "told": told(run.deployment, run.operator.metrics()),
    }


def _identity(status: Mapping[str, Any]) -> tuple[str, str] | None:
    rollout = status.get("rollout") or {}
    return (str(rollout.get("revision")), str(rollout.get("startedAt"))) if rollout else None


def _ready(status: Mapping[str, Any]) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or ())


def start_s(run: Run) -> float:
    """Returns the seconds that the slowest start of an engine has taken so far; 60 before the first."""
    return max((item["readyAt"] - item["startedAt"] for item in run.node.ran() if "readyAt" in item), default=60.0)


def _limit(run: Run, starts: int, after_s: float) -> float:
    """Returns the seconds a rollout may take so that later phases still fit: their ``starts`` of an engine and ``after_s`` seconds."""
    return min(420.0, run.remaining_s() - starts * start_s(run) - after_s)


def _block(run: Run) -> int:
    """Returns the block size in use; 1 if speculation is off."""
    # The status is that of the newest spec only a moment after a change of the spec.
    run.wait(lambda status: "speculation" in status, 10.0)
    return int((run.deployment.status().get("speculation") or {}).get("blockSize") or 1)


def _text_keys(values: Mapping[int, float]) -> dict[str, float]:
    return {str(key): value for key, value in values.items()}


def _pod_exists(run: Run, uid: str) -> bool:
    return uid in {pod["metadata"]["uid"] for pod in run.cluster.api.get("/api/v1/namespaces/default/pods")["items"]}


def _wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


class _Long(threading.Thread):
    """Some long requests, sent once."""

    def __init__(self, urls: Sequence[str], model: str, clients: int, tokens: int) -> None:
        super().__init__(name="long requests", daemon=True)
        mix = Mix({"long": 1.0}, max_tokens=tokens, prompt_tokens=64, stream=0.5)
        self._client = Client(Target(urls, model, timeout_s=400), Words(mix, seed=1))
        self._clients = clients
        self.log = self._client.log

    def run(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        async with self._client as client:
            await client.closed_loop(self._clients, seconds=1.0)
