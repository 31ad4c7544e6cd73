"""Leadership and watches against a real API server."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dflash_controller.api import names
from dflash_controller.cluster import kinds
from dflash_controller.cluster.access import load_configuration
from dflash_controller.cluster.client import Client
from dflash_controller.cluster.errors import LostLeadership
from dflash_controller.cluster.events import EventRecorder
from dflash_controller.cluster.executor import Executor
from dflash_controller.cluster.lease import Elector, LeaseTiming
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key
from dflash_controller.planning.state.plan import Apply, Plan
from dflash_controller.runtime.watch import WATCH_USER_AGENT, EventSink, Watches
from testbed.cluster import Cluster

TIMING = LeaseTiming(duration_s=3.0, renew_deadline_s=1.5, retry_period_s=0.4)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(await load_configuration({"KUBECONFIG": str(cluster.admin_kubeconfig)})) as opened:
        yield opened


def elector(client: Client, namespace: str, identity: str) -> Elector:
    return Elector(client, namespace=namespace, name="operator", identity=identity, timing=TIMING)


def account(namespace: str, name: str = "demo-engine") -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": name, "labels": names.child_labels("demo")}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False}


async def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Fails with the condition's last value when it does not become true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"still {value!r}"
        await asyncio.sleep(0.02)


async def test_a_paused_leader_is_replaced_and_writes_no_more(client: Client, namespace: str) -> None:
    first, second = elector(client, namespace, "first"), elector(client, namespace, "second")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(TIMING.duration_s + 1.0)
    assert first.is_leader()
    assert not second.is_leader()

    holding.cancel()  # A process that is paused renews nothing.
    paused = time.monotonic()
    await waiting
    assert time.monotonic() - paused < TIMING.duration_s + 2 * TIMING.retry_period_s
    assert second.is_leader()
    assert not first.is_leader()

    events = EventRecorder(client, instance="test", clock=time.monotonic, now=lambda: datetime.datetime.now(datetime.UTC))
    store = Store()
    late = Executor(client, store, events, still_leader=first.is_leader, clock=time.monotonic)
    plan = Plan((Apply(account(namespace)),))
    with pytest.raises(LostLeadership):
        await late.execute(plan, store.snapshot(Key(namespace, "demo")))
    current = Executor(client, store, events, still_leader=second.is_leader, clock=time.monotonic)
    assert (await current.execute(plan, store.snapshot(Key(namespace, "demo")))).writes == 1


async def test_a_leader_that_stops_hands_over_at_once(client: Client, namespace: str) -> None:
    first, second = elector(client, namespace, "first"), elector(client, namespace, "second")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(TIMING.retry_period_s)
    await first.release()
    released = time.monotonic()
    await waiting
    assert time.monotonic() - released < TIMING.duration_s / 2
    lease = await client.get(kinds.LEASE, namespace, "operator")
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("second", 1)


async def test_watches_feed_store_and_queue_and_kopf_writes_nothing(
    client: Client, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = ("--clusterrole=cluster-admin", f"--serviceaccount={namespace}:default")
    await asyncio.to_thread(cluster.kubectl, "-n", namespace, "create", "rolebinding", "watcher", *rights)
    kubeconfig = await asyncio.to_thread(cluster.service_account_kubeconfig, namespace, "default")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    key, store, queued = Key(namespace, "demo"), Store(), list[Key]()
    arrived: set[str] = set()
    opened: list[tuple[kinds.Kind, str | None]] = []
    deployment = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"namespace": namespace, "name": "demo"},
        "spec": {"target": {"model": "Qwen/Qwen3.5-9B"}},
    }
    await client.create(kinds.DFLASH_DEPLOYMENT, deployment)
    await client.apply(kinds.SERVICE_ACCOUNT, account(namespace) | {"metadata": {"namespace": namespace, "name": "unlabelled"}})
    mark = await asyncio.to_thread(cluster.audit_mark)
    watches = Watches(
        EventSink(store, enqueue=queued.append, arrived=arrived.add, opened=lambda kind, place: opened.append((kind, place))),
        namespaces=[namespace],
        identity="test",
    )
    watching = asyncio.create_task(watches.run())
    try:
        await eventually(lambda: store.snapshot(key).deployment)
        await eventually(lambda: key in queued)
        queued.clear()

        made = await client.apply(kinds.SERVICE_ACCOUNT, account(namespace))
        await eventually(lambda: store.snapshot(key).others)
        assert queued == [key]
        assert [item["metadata"]["name"] for item in store.snapshot(key).others] == ["demo-engine"]

        await client.delete(kinds.SERVICE_ACCOUNT, namespace, "demo-engine", uid=made["metadata"]["uid"])
        await eventually(lambda: not store.snapshot(key).others)
        assert queued == [key, key]

        status = {**deployment, "metadata": {**deployment["metadata"]}, "status": {"observedGeneration": 1}}
        await client.apply(kinds.DFLASH_DEPLOYMENT, status, subresource="status")
        await eventually(lambda: (store.snapshot(key).deployment or {}).get("status"))
        assert queued == [key, key]

        live = await client.get(kinds.DFLASH_DEPLOYMENT, namespace, "demo")
        await client.delete(kinds.DFLASH_DEPLOYMENT, namespace, "demo", uid=live["metadata"]["uid"])
        await eventually(lambda: store.snapshot(key).deployment is None)
        assert not watching.done()
    finally:
        watches.stop()
        started = time.monotonic()
        await watching
    assert time.monotonic() - started < 5.0
    assert sorted(kind.name for kind, _ in opened) == sorted(kind.name for kind in kinds.STORED if not kind.optional)
    assert {place for _, place in opened} == {namespace}
    assert arrived >= {"DFlashDeployment", "ServiceAccount"}
    by_kopf = {event["verb"] for event in await asyncio.to_thread(cluster.audit, mark) if event.get("userAgent") == WATCH_USER_AGENT}
    assert {"list", "watch"} <= by_kopf <= {"list", "watch", "get"}
