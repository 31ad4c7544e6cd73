"""The progress of downloads on its way to the status: which pods are asked, how often, and what is believed."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace

import pytest

from dflash_controller.fetch.listen import Listener
from dflash_controller.model.fetch_progress import FetchProgress, parse_progress
from dflash_controller.model.snapshot import Key, Pod, Snapshot
from dflash_controller.observe.fetch_progress import read_progress
from dflash_controller.runtime.fetch_watch import MOST_PODS, FetchWatch
from tests.support.virtual_time import run_in_virtual_time

KEY = Key("models", "chat")
HALF = FetchProgress("Fetching acme/x", 5, 10, 1.0, 5.0)


def pod(name: str = "chat-fetch-1", ip: str | None = "127.0.0.1") -> Pod:
    return Pod(
        name=name,
        uid=name,
        resource_version="1",
        revision="r1",
        role="engine",
        node="n1",
        ip=ip,
        phase="Pending",
        ready=False,
        ready_since=None,
        terminating=False,
        restarts=0,
        waiting_reason=None,
        message=None,
        unschedulable=None,
        unschedulable_since=None,
        fetching=True,
    )


def snapshot(*pods: Pod) -> Snapshot:
    return Snapshot(KEY, None, pods=pods)


def test_what_a_pod_serves_is_read() -> None:
    with Listener(0, lambda: asdict(HALF)) as listener:
        for ip in ("127.0.0.1", "::1"):
            assert asyncio.run(read_progress(ip, listener.port)) == HALF
    assert asyncio.run(read_progress("127.0.0.1", listener.port)) is None, "it has ended"


NO_PROGRESS = (
    '{"phase": "", "done": 9, "total": 5, "rate": 0, "left": null}',
    '{"phase": "", "done": -1, "total": 5, "rate": 0, "left": null}',
    '{"phase": "", "done": 1, "total": 5, "rate": NaN, "left": 1}',
    '{"phase": "", "done": 1, "total": 5, "rate": 1e999, "left": 1}',
)


@pytest.mark.parametrize("text", ["", "[]", "{}", *NO_PROGRESS])
def test_what_is_no_progress_is_not_believed(text: str) -> None:
    assert parse_progress(text) is None


class Pods:
    """Pods that are asked, and what they answer."""

    def __init__(self, *answers: FetchProgress | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, str]] = []

    async def read(self, ip: str) -> FetchProgress | None:
        self.asked.append((asyncio.get_running_loop().time(), ip))
        return self.answers.pop(0) if self.answers else None


def test_a_change_is_told_once_a_minute_at_most_and_the_end_is_noticed() -> None:
    more = replace(HALF, done=8)
    pods, told = Pods(HALF, HALF, more, None), list[float]()

    async def story() -> None:
        watch = FetchWatch(lambda key: told.append(asyncio.get_running_loop().time()), pods.read, first_s=5, every_s=60)
        for _ in range(30):
            watch.follow(snapshot(pod()))
            await asyncio.sleep(10)
        assert watch.progress(KEY) == {"chat-fetch-1": more}, "a pod that does not answer once is as it was"
        watch.follow(snapshot())
        assert watch.progress(KEY) == {}
        asked = len(pods.asked)
        await asyncio.sleep(300)
        assert len(pods.asked) == asked

    run_in_virtual_time(story())
    assert told == [5, 125]
    assert [at for at, _ in pods.asked] == [5, 65, 125, 185, 245]


def test_what_pods_said_is_forgotten_when_none_answers_any_more() -> None:
    pods, told = Pods(HALF), list[float]()

    async def story() -> None:
        watch = FetchWatch(lambda key: told.append(asyncio.get_running_loop().time()), pods.read, first_s=5, every_s=60)
        watch.follow(snapshot(pod()))
        await asyncio.sleep(170)
        assert watch.progress(KEY) == {"chat-fetch-1": HALF}
        await asyncio.sleep(60)
        assert watch.progress(KEY) == {}
        await asyncio.sleep(600)

    run_in_virtual_time(story())
    assert told == [5, 185], "once"


def test_only_pods_that_fetch_are_asked_and_not_too_many_of_them() -> None:
    pods = Pods()

    async def story() -> None:
        watch = FetchWatch(lambda key: None, pods.read, first_s=5, every_s=60)
        watch.follow(snapshot(replace(pod(), fetching=False), pod(ip=None), replace(pod(), terminating=True)))
        await asyncio.sleep(100)
        assert pods.asked == []
        watch.follow(snapshot(*(pod(f"p{number:02}", f"127.0.1.{number}") for number in range(30))))
        await asyncio.sleep(6)
        assert len(pods.asked) == MOST_PODS
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        watch.follow(snapshot(pod()))
        await asyncio.sleep(100)
        assert len(pods.asked) == MOST_PODS, "a process that does not lead asks nobody"

    run_in_virtual_time(story())
