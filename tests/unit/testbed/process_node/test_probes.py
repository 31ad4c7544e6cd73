"""Probes as the kubelet reads and counts them."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from aiohttp import web

from testbed.process_node.probes import ExecuteInContainer, ProbeCount, ProbeSpec, UnsupportedProbe, ask, probe_of

CONTAINER: dict[str, Any] = {
    "ports": [{"name": "http", "containerPort": 8000}],
    "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "failureThreshold": 72, "timeoutSeconds": 10},
    "livenessProbe": {"tcpSocket": {"port": 8000}, "terminationGracePeriodSeconds": 7},
}


def test_a_probe_has_its_named_port_and_the_apis_defaults() -> None:
    assert probe_of(CONTAINER, "startupProbe") == ProbeSpec(port=8000, path="/health", period_s=10, timeout_s=10, failure_threshold=72)
    assert probe_of(CONTAINER, "livenessProbe") == ProbeSpec(port=8000, tcp=True, grace_period_s=7)
    assert probe_of(CONTAINER, "readinessProbe") is None


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ({"grpc": {"port": 9}}, "only httpGet, tcpSocket and exec"),
        ({"httpGet": {"port": 1, "scheme": "HTTPS"}}, "only the scheme HTTP"),
        ({"httpGet": {"port": "metrics"}}, "no port named 'metrics'"),
    ],
)
def test_a_probe_that_cannot_be_asked_is_refused(probe: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedProbe, match=message):
        probe_of({**CONTAINER, "readinessProbe": probe}, "readinessProbe")


def passed(spec: ProbeSpec, answers: str) -> list[bool | None]:
    count = ProbeCount(spec)
    return [count.add(answer == "y") for answer in answers]


def test_readiness_changes_only_after_as_many_answers_in_a_row_as_its_threshold() -> None:
    assert passed(ProbeSpec(failure_threshold=3), "nynnyn") == [None, True, True, True, True, True]
    assert passed(ProbeSpec(failure_threshold=3), "ynnny") == [True, True, True, False, True]
    assert passed(ProbeSpec(success_threshold=2, failure_threshold=1), "yyny") == [None, True, False, False]


@pytest.fixture
async def server() -> Any:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=int(request.match_info["status"]), headers={"Location": "/200"})

    app = web.Application()
    app.router.add_get("/{status}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield site.port
    await runner.cleanup()


@pytest.mark.parametrize(("status", "success"), [(200, True), (302, True), (399, True), (400, False), (503, False)])
async def test_statuses_from_200_to_399_are_a_success(server: int, status: int, success: bool) -> None:
    async with aiohttp.ClientSession() as session:
        problem = await ask(ProbeSpec(port=server, path=f"/{status}"), "127.0.0.1", session, ExecuteInContainer({}, "/"))
    assert problem == (None if success else f"HTTP probe failed with statuscode: {status}")


async def test_a_port_where_nothing_listens_is_a_failure() -> None:
    async with aiohttp.ClientSession() as session:
        for spec in (ProbeSpec(port=1, path="/"), ProbeSpec(port=1, tcp=True)):
            assert await ask(spec, "127.0.0.1", session, ExecuteInContainer({}, "/"))


async def test_a_command_is_a_success_if_it_ends_with_0_in_time() -> None:
    async with aiohttp.ClientSession() as session:
        execute = ExecuteInContainer({"PATH": "/usr/bin:/bin"}, "/")
        assert await ask(ProbeSpec(command=("true",)), "", session, execute) is None
        assert await ask(ProbeSpec(command=("sh", "-c", "exit 4")), "", session, execute) == "exit status 4"
        assert await ask(ProbeSpec(command=("sleep", "30")), "", session, execute) == "no answer within 1 s"
