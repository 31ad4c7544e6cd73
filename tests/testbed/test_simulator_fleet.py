"""One process for many pods, by address; the API server is played by hand."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from testbed.simulator.fleet import Fleet
from testbed.simulator.host import Clock
from testbed.simulator.pod_api import Pod, PodEvent
from testbed.simulator.rules import parse_rules
from testbed.simulator.table import seed_table


class FakeApi:
    """Hands out the events it is given and keeps the annotations written."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[PodEvent] = asyncio.Queue()
        self.annotations: dict[str, dict[str, str | None]] = {}

    async def events(self) -> AsyncIterator[PodEvent]:
        while True:
            yield await self.queue.get()

    async def annotate(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        self.annotations.setdefault(pod["metadata"]["name"], {}).update(annotations)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


class World:
    def __init__(self, fleet: Fleet, api: FakeApi, session: aiohttp.ClientSession) -> None:
        self.fleet = fleet
        self.api = api
        self.session = session
        self.port = free_port()

    def pod(
        self, name: str, ip: str, *, block: int = 16, extra: tuple[str, ...] = (), annotations: dict[str, str] | None = None
    ) -> dict[str, Any]:
        arguments = (
            "-m sglang.launch_server --model-path Qwen/Qwen3.5-9B --speculative-algorithm DFLASH --enable-metrics --served-model-name m"
            f" --speculative-draft-model-path z-lab/Qwen3.5-9B-DFlash --speculative-num-draft-tokens {block} --port {self.port}"
        ).split()
        container = {"name": "engine", "image": "lmsysorg/sglang:v0.5.23", "command": ["python3"], "args": [*arguments, *extra]}
        return {
            "metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}", "annotations": annotations or {}},
            "spec": {"containers": [container]},
            "status": {
                "phase": "Running",
                "podIP": ip,
                "containerStatuses": [{"name": "engine", "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
            },
        }

    def tell(self, kind: str, *pods: dict[str, Any]) -> None:
        self.api.queue.put_nowait(PodEvent(kind, tuple(copy.deepcopy(pods))))

    async def get(self, ip: str, path: str) -> tuple[int, str]:
        async with self.session.get(f"http://{ip}:{self.port}{path}") as response:
            return response.status, await response.text()

    async def complete(self, ip: str, tokens: int = 30) -> int:
        body = {"model": "m", "prompt": "x", "max_tokens": tokens}
        async with self.session.post(f"http://{ip}:{self.port}/v1/completions", json=body) as response:
            return int((await response.json())["usage"]["completion_tokens"])

    async def until(self, check: Any) -> Any:
        end = time.monotonic() + 3
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                result = check()
                result = await result if asyncio.iscoroutine(result) else result
                if result:
                    return result
            assert time.monotonic() < end, "did not happen in time"
            await asyncio.sleep(0.01)

    def phases(self) -> dict[str, str]:
        return {entry["pod"]: entry["phase"] for entry in self.fleet.pods()}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with played() as world:
        yield world


@contextlib.asynccontextmanager
async def played(stop_s: float | None = None) -> AsyncIterator[World]:
    api = FakeApi()
    fleet = Fleet(api, seed_table(), Clock(20.0), stop_s=stop_s)  # type: ignore[arg-type]
    running = asyncio.create_task(fleet.run())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield World(fleet, api, session)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_pods_are_told_apart_by_address(world: World) -> None:
    world.tell("LISTED", world.pod("a", "127.88.0.1", block=16), world.pod("b", "127.88.0.2", block=8))
    await world.until(lambda: len(world.phases()) == 2)
    await world.until(lambda: world.complete("127.88.0.1"))
    _, with16 = await world.get("127.88.0.1", "/metrics")
    _, with8 = await world.get("127.88.0.2", "/metrics")
    assert "sglang:generation_tokens_total" in with16
    assert "sglang:generation_tokens_total" not in with8
    assert '"speculative_num_draft_tokens": 8' in (await world.get("127.88.0.2", "/server_info"))[1]


async def test_an_address_without_pod_refuses_connections(world: World) -> None:
    world.tell("LISTED", world.pod("a", "127.88.0.1"))
    await world.until(lambda: world.complete("127.88.0.1"))
    with pytest.raises(aiohttp.ClientConnectorError):
        await world.get("127.88.0.9", "/health")
    world.tell("DELETED", world.pod("a", "127.88.0.1"))
    await world.until(lambda: not world.phases())
    with pytest.raises(aiohttp.ClientConnectorError):
        await world.get("127.88.0.1", "/health")


async def test_a_deleted_pod_cuts_its_requests_and_its_successor_starts_anew(world: World) -> None:
    world.tell("LISTED", world.pod("a", "127.88.0.1"))
    await world.until(lambda: world.complete("127.88.0.1"))
    long = asyncio.create_task(world.complete("127.88.0.1", 1_000_000))
    await asyncio.sleep(0.1)
    world.tell("DELETED", world.pod("a", "127.88.0.1"))
    with pytest.raises(aiohttp.ClientError):
        await long
    world.tell("ADDED", {**world.pod("a", "127.88.0.1"), "metadata": {"name": "a", "namespace": "d", "uid": "other"}})
    await world.until(lambda: world.get("127.88.0.1", "/metrics"))
    assert "sglang:generation_tokens_total" not in (await world.get("127.88.0.1", "/metrics"))[1]


async def test_pods_missing_from_a_new_list_are_forgotten(world: World) -> None:
    world.tell("LISTED", world.pod("a", "127.88.0.1"), world.pod("b", "127.88.0.2"))
    world.tell("LISTED", world.pod("b", "127.88.0.2"))
    await world.until(lambda: world.phases() == {"d/b": "Serving"})


async def test_a_refused_command_line_crashes_the_pod_with_the_engines_words(world: World) -> None:
    pending = world.pod("a", "", extra=("--no-such-flag",))
    pending["status"] = {"phase": "Pending"}
    world.tell("ADDED", pending)
    await world.until(lambda: world.api.annotations.get("a", {}).get("sim/crash"))
    assert world.api.annotations["a"]["sim/crash"] == "2"
    assert "--no-such-flag" in str(world.api.annotations["a"]["sim/message"])
    assert world.phases() == {"d/a": "Refused"}


async def test_a_crash_on_demand_lasts_until_the_kubelet_has_seen_it(world: World) -> None:
    pod = world.pod("a", "127.88.0.1")
    world.tell("LISTED", pod)
    await world.until(lambda: world.complete("127.88.0.1"))
    async with world.session.post(f"http://127.88.0.1:{world.port}/sim/crash", json={"code": 137}):
        pass
    await world.until(lambda: world.api.annotations.get("a", {}).get("sim/crash") == "137")
    with pytest.raises(aiohttp.ClientConnectorError):
        await world.get("127.88.0.1", "/health")
    status = pod["status"]["containerStatuses"][0]
    status.update(restartCount=1, state={"waiting": {"reason": "CrashLoopBackOff"}})
    world.tell("MODIFIED", pod)
    await world.until(lambda: world.api.annotations["a"]["sim/crash"] is None)
    assert world.phases() == {"d/a": "Down"}
    status.update(restartCount=1, state={"running": {}})
    world.tell("MODIFIED", pod)
    await world.until(lambda: world.get("127.88.0.1", "/metrics"))
    assert "sglang:generation_tokens_total" not in (await world.get("127.88.0.1", "/metrics"))[1]


async def test_start_up_takes_as_long_as_the_annotation_kwok_reads(world: World) -> None:
    world.tell("LISTED", world.pod("a", "127.88.0.1", annotations={"sim/ready-after": "0.5"}))
    status, _ = await world.until(lambda: world.get("127.88.0.1", "/ready"))
    assert status == 503
    began = time.monotonic()

    async def is_ready() -> bool:
        return (await world.get("127.88.0.1", "/ready"))[0] == 200

    await world.until(is_ready)
    assert 0.2 < time.monotonic() - began < 1.0


async def test_unhealthy_engines_are_unready_pods(world: World) -> None:
    world.tell("LISTED", world.pod("a", "127.88.0.1"))
    await world.until(lambda: world.complete("127.88.0.1"))
    for hang, annotation in ((True, "false"), (False, None)):
        async with world.session.patch(f"http://127.88.0.1:{world.port}/sim/faults", json={"hang": hang}) as response:
            assert response.status == 200
        await world.until(lambda annotation=annotation: world.api.annotations["a"]["sim/ready"] == annotation)


async def test_rules_reach_pods_there_and_pods_to_come(world: World) -> None:
    world.tell("LISTED", world.pod("a", "127.88.0.1"))
    await world.until(lambda: world.complete("127.88.0.1"))
    world.fleet.set_rules(parse_rules([{"match": {"drafter": "z-lab/*"}, "faults": {"acceptance": 0}}]))
    world.tell("ADDED", world.pod("b", "127.88.0.2"))
    await world.until(lambda: world.complete("127.88.0.2"))
    assert [entry["faults"]["acceptance"] for entry in world.fleet.pods()] == [0, 0]
    world.fleet.set_rules(())
    assert [entry["faults"]["acceptance"] for entry in world.fleet.pods()] == [1.0, 1.0]


async def test_a_pod_being_deleted_drains(world: World) -> None:
    pod = world.pod("a", "127.88.0.1")
    world.tell("LISTED", pod)
    await world.until(lambda: world.complete("127.88.0.1"))
    old = asyncio.create_task(world.complete("127.88.0.1", 8000))
    await asyncio.sleep(0.1)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.tell("MODIFIED", pod)
    await world.until(lambda: world.phases() == {"d/a": "Draining"})
    assert (await world.get("127.88.0.1", "/ready"))[0] == 503
    assert await old == 8000
    assert "sim/crash" not in world.api.annotations.get("a", {})
    await world.until(lambda: world.phases() == {"d/a": "Down"})


async def test_with_a_stop_time_a_pod_ends_once_its_engine_is_drained() -> None:
    async with played(stop_s=0.05) as world:
        pods = [world.pod("busy", "127.88.0.1"), world.pod("own", "127.88.0.2", annotations={"sim/exit-after": "7"})]
        for pod in pods:
            pod["spec"]["terminationGracePeriodSeconds"] = 600
        world.tell("LISTED", *pods)
        await world.until(lambda: world.complete("127.88.0.1"))
        assert world.api.annotations["busy"]["sim/exit-after"] == "600"
        old = asyncio.create_task(world.complete("127.88.0.1", 8000))
        await asyncio.sleep(0.1)
        for pod in pods:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.tell("MODIFIED", *pods)
        await world.until(lambda: world.phases()["d/busy"] == "Draining")
        assert world.api.annotations["busy"]["sim/exit-after"] == "600"
        assert await old == 8000
        await world.until(lambda: world.api.annotations["busy"]["sim/exit-after"] == "0")
        await world.until(lambda: set(world.phases().values()) == {"Down"})
        assert "sim/exit-after" not in world.api.annotations.get("own", {})


async def test_with_a_stop_time_a_pod_whose_engine_never_ran_ends_at_once() -> None:
    async with played(stop_s=30.0) as world:
        refused = world.pod("a", "127.88.0.1", extra=("--no-such-flag",))
        world.tell("LISTED", refused)
        await world.until(lambda: "sim/crash" in world.api.annotations.get("a", {}))
        refused["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.tell("MODIFIED", refused)
        await world.until(lambda: world.api.annotations["a"]["sim/exit-after"] == "0")


async def test_workers_of_a_multi_node_replica_serve_no_api(world: World) -> None:
    extra = ("--tp", "8", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "127.88.0.1:20000")
    world.tell("LISTED", world.pod("w", "127.88.0.3", extra=extra))
    assert (await world.until(lambda: world.get("127.88.0.3", "/health")))[0] == 200
    assert [(await world.get("127.88.0.3", path))[0] for path in ("/v1/models", "/ready")] == [404, 404]
