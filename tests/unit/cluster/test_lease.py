"""Leader election, in virtual time, against a Lease that behaves as the API server's."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping
from typing import Any, cast

import pytest

from dflash_controller.cluster.client import Client, Obj
from dflash_controller.cluster.errors import AlreadyExists, Conflict, NotFound, Unavailable
from dflash_controller.cluster.kinds import Kind
from dflash_controller.cluster.lease import Elector, LeaseTiming
from tests.support.virtual_time import run_in_virtual_time

EPOCH = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class LeaseServer:
    """One Lease with optimistic locking, and outages."""

    def __init__(self) -> None:
        self.lease: Obj | None = None
        self.writes = 0
        self.down = False
        self.swallow_answer = False

    async def get(self, kind: Kind, namespace: str, name: str) -> Obj:
        self._answer()
        if self.lease is None:
            raise NotFound(404, "NotFound", name)
        return self.lease

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> Obj:
        self._answer()
        if self.lease is not None:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        return self._store(manifest)

    async def replace(self, kind: Kind, manifest: Mapping[str, Any]) -> Obj:
        self._answer()
        if self.lease is None:
            raise NotFound(404, "NotFound", "gone")
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "stale")
        stored = self._store(manifest)
        if self.swallow_answer:
            self.swallow_answer = False
            raise Unavailable(0, "NoAnswer", "timed out after the write")
        return stored

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    def _answer(self) -> None:
        if self.down:
            raise Unavailable(0, "NoAnswer", "down")

    def _store(self, manifest: Mapping[str, Any]) -> Obj:
        self.writes += 1
        self.lease = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self.writes)}}
        return self.lease


def elector(server: LeaseServer, identity: str) -> Elector:
    loop = asyncio.get_running_loop()
    return Elector(
        cast(Client, server),
        namespace="ns",
        name="lease",
        identity=identity,
        clock=loop.time,
        now=lambda: EPOCH + datetime.timedelta(seconds=loop.time()),
    )


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_first_candidate_leads_at_once_and_keeps_renewing() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        first = elector(server, "a")
        assert not first.is_leader()
        await first.acquire()
        assert now() == 0.0
        holding = asyncio.create_task(first.hold())
        await asyncio.sleep(60.0)
        assert first.is_leader()
        assert server.writes == 30
        assert server.lease is not None
        assert server.lease["spec"]["renewTime"] == "2026-01-01T00:00:58.000000Z"
        holding.cancel()

    run_in_virtual_time(scenario())


def test_a_standby_takes_over_after_the_lease_ran_out_and_not_before() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        await elector(server, "dead").acquire()
        await asyncio.sleep(1.0)
        standby = elector(server, "b")
        await standby.acquire()
        # Seen unchanged for 15 s since t = 1, and looked at as soon as it has expired.
        assert 16.0 <= now() <= 16.1
        assert server.holder == "b"
        assert server.lease is not None
        assert server.lease["spec"]["leaseTransitions"] == 1

    run_in_virtual_time(scenario())


def test_a_standby_leads_16_seconds_after_the_end_of_a_leader_at_the_latest() -> None:
    """The leader renewed up to 2 s before its end, and the standby saw that up to 1.2 s later. Its answers take no time here."""

    async def scenario(killed_after_s: float) -> float:
        server = LeaseServer()
        leader, standby = elector(server, "a"), elector(server, "b")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        waiting = asyncio.create_task(standby.acquire())
        await asyncio.sleep(killed_after_s)
        holding.cancel()
        killed_at, renewed_at = now(), leader._renewed_at
        await waiting
        assert renewed_at is not None
        assert now() - renewed_at >= 15.0
        return now() - killed_at

    delays = [run_in_virtual_time(scenario(30.0 + 0.19 * step)) for step in range(40)]
    assert max(delays) <= 15.0 + 1.2 + 0.1
    assert sum(delays) / len(delays) < 15.0


def test_a_live_leader_is_never_robbed_even_by_a_standby_with_a_wrong_clock() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        leader = elector(server, "a")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        standby = elector(server, "b")
        standby._now = lambda: EPOCH + datetime.timedelta(days=1)
        waiting = asyncio.create_task(standby.acquire())
        await asyncio.sleep(300.0)
        assert server.holder == "a"
        assert not standby.is_leader()
        for task in (holding, waiting):
            task.cancel()

    run_in_virtual_time(scenario())


def test_a_leader_cut_off_stops_before_anybody_else_may_start() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        leader = elector(server, "a")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(5.0)
        server.down = True
        last_renewal = 4.0
        await asyncio.sleep(last_renewal + 10.0 - now() - 0.001)
        assert leader.is_leader()
        await asyncio.sleep(0.001)
        assert not leader.is_leader()
        await holding
        assert now() < last_renewal + 15.0

    run_in_virtual_time(scenario())


def test_a_process_that_was_paused_knows_at_once_and_does_not_take_the_lease_up_again() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        leader = elector(server, "a")
        await leader.acquire()
        skipped = 0.0
        clock = leader._clock
        leader._clock = lambda: clock() + skipped
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(3.0)
        writes = server.writes
        skipped = 60.0
        assert not leader.is_leader()
        await holding
        assert server.writes == writes

    run_in_virtual_time(scenario())


def test_a_leader_whose_lease_was_taken_stops_at_its_next_renewal() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        leader = elector(server, "a")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(1.0)
        assert server.lease is not None
        server._store(server.lease | {"spec": server.lease["spec"] | {"holderIdentity": "thief"}})
        await holding
        assert now() == 2.0
        assert not leader.is_leader()

    run_in_virtual_time(scenario())


def test_a_renewal_whose_answer_was_lost_is_found_to_have_worked() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        leader = elector(server, "a")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        server.swallow_answer = True
        await asyncio.sleep(60.0)
        assert leader.is_leader()
        holding.cancel()

    run_in_virtual_time(scenario())


def test_a_released_lease_is_taken_at_the_next_look() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        leader = elector(server, "a")
        await leader.acquire()
        waiting = asyncio.create_task(elector(server, "b").acquire())
        await asyncio.sleep(1.0)
        await leader.release()
        assert not leader.is_leader()
        assert server.holder == ""
        await waiting
        assert now() <= 2.4
        writes = server.writes
        await leader.release()
        assert server.writes == writes

    run_in_virtual_time(scenario())


def test_a_renewal_that_arrived_although_it_was_cancelled_does_not_hinder_the_release() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        leader = elector(server, "a")
        await leader.acquire()
        assert server.lease is not None
        server._store(server.lease)
        await leader.release()
        assert server.holder == ""

    run_in_virtual_time(scenario())


def test_of_two_candidates_exactly_one_leads() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        both = [elector(server, "a"), elector(server, "b")]
        waiting = [asyncio.create_task(candidate.acquire()) for candidate in both]
        await asyncio.sleep(0.5)
        assert [candidate.is_leader() for candidate in both].count(True) == 1
        for task in waiting:
            task.cancel()

    run_in_virtual_time(scenario())


def test_an_outage_while_waiting_is_waited_out_and_shown_as_not_ready() -> None:
    async def scenario() -> None:
        server = LeaseServer()
        server.down = True
        candidate = elector(server, "a")
        waiting = asyncio.create_task(candidate.acquire())
        await asyncio.sleep(100.0)
        assert candidate.silent() == "no answer yet"
        server.down = False
        await waiting
        assert candidate.silent() is None
        await asyncio.sleep(31.0)
        assert candidate.silent() is not None

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("wrong", [(10.0, 10.0, 2.0), (15.0, 2.0, 2.0), (15.0, 10.0, 0.0)])
def test_times_that_cannot_work_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="lease duration"):
        LeaseTiming(*wrong)
    assert LeaseTiming().request_s < LeaseTiming().retry_period_s
