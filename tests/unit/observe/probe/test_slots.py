"""Who is asked next when there are more requests than slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dflash_controller.api.defaults import effective_rollout
from dflash_controller.model.counters import Answer
from dflash_controller.model.probe import Endpoint, ProbeRequest
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.probe.run import Probe
from dflash_controller.observe.probe.slots import AT_MOST, PER_NAMESPACE, Slots
from dflash_controller.runtime.prober import Prober
from tests.support.probe_world import request
from tests.support.render_inputs import deployment, parsed
from tests.support.virtual_time import run_in_virtual_time

NEW, OLD = (Endpoint(revision, revision, "127.0.0.1", 1, "vllm", "m") for revision in ("new", "old"))
DEFAULTS = effective_rollout(parsed(deployment()))


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class Engines:
    """Engines that take so long for an answer, and of which every candidate differs from its stable."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.asked = self.inside = self.most = 0

    async def ask(self, endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
        self.asked += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(self.takes_s)
        self.inside -= 1
        return Answer(10, 2.0, 0.1, endpoint.revision)

    async def close(self) -> None:
        """Nothing to close."""


class Fleet:
    """A prober with real runs, and when each of them ended."""

    def __init__(self, takes_s: float) -> None:
        self.engines = Engines(takes_s)
        self.slots = Slots(clock=loop_time)
        self.done: dict[Key, float] = {}
        self.news = asyncio.Event()
        probe = Probe(self.engines, slots=self.slots, clock=loop_time)
        self.prober = Prober(probe, self.ended)

    def want(self, namespace: str, number: int, **changes: int) -> Key:
        key, policy = Key(namespace, f"d{number}"), DEFAULTS.probe
        asked = ProbeRequest(key, NEW, OLD, policy.prompts, policy.max_tokens, policy.prompts_per_minute, policy.timeout_s)
        self.prober.want(key, replace(asked, **changes))
        return key

    async def until_done(self, *keys: Key) -> None:
        while not self.done.keys() >= set(keys):
            self.news.clear()
            await self.news.wait()

    def ended(self, key: Key) -> None:
        self.done.setdefault(key, loop_time())
        self.news.set()


def play(takes_s: float, story: Callable[[Fleet], Coroutine[Any, Any, None]]) -> Fleet:
    async def whole() -> Fleet:
        fleet = Fleet(takes_s)
        await story(fleet)
        await fleet.prober.close()
        return fleet

    return run_in_virtual_time(whole())


def test_five_hundred_candidates_at_once_have_all_their_answers_before_their_deadline() -> None:
    """Every text differs, so that every prompt is asked twice on both sides: the most that a run may ask."""

    async def story(fleet: Fleet) -> None:
        await fleet.until_done(*[fleet.want("team", number) for number in range(500)])

    fleet = play(3.4, story)
    assert fleet.engines.asked == 500 * 64 * 2 * 2
    assert fleet.engines.most == PER_NAMESPACE
    assert max(fleet.done.values()) < DEFAULTS.deadline_s
    assert max(fleet.done.values()) - min(fleet.done.values()) < 0.05 * max(fleet.done.values()), "nobody is served last"


def test_a_tenant_with_the_largest_and_slowest_runs_does_not_delay_another() -> None:
    alone = play(2.0, lambda fleet: fleet.until_done(fleet.want("other", 0, prompts=16)))

    async def beside_slow_ones(fleet: Fleet) -> None:
        for number in range(8):
            fleet.want("greedy", number, prompts=1024, prompts_per_minute=1)
        await fleet.until_done(fleet.want("other", 0, prompts=16))

    async def beside_many(fleet: Fleet) -> None:
        for number in range(400):
            fleet.want("greedy", number, prompts=1024, prompts_per_minute=6000)
        await fleet.until_done(fleet.want("other", 0, prompts=16))

    async def beside_many_tenants(fleet: Fleet) -> None:
        for number in range(400):
            fleet.want(f"greedy-{number % 20}", number, prompts=1024, prompts_per_minute=6000)
        await fleet.until_done(fleet.want("other", 0, prompts=16))
        assert fleet.engines.most == AT_MOST

    key = Key("other", "d0")
    assert play(2.0, beside_slow_ones).done[key] == alone.done[key]
    assert play(2.0, beside_many).done[key] == alone.done[key]
    assert play(2.0, beside_many_tenants).done[key] <= 2 * alone.done[key], "it waits for one answer each time"


def test_free_slots_go_round_the_namespaces_and_within_one_to_the_oldest() -> None:
    granted: list[str] = []

    async def hold(slots: Slots, namespace: str, name: str) -> None:
        async with slots.turn(Key(namespace, name)):
            granted.append(f"{namespace}/{name}")
            await asyncio.sleep(1.0)

    async def story() -> None:
        slots = Slots(1, 1, clock=loop_time)
        places = [("a", "1"), ("a", "2"), ("a", "3"), ("a", "4"), ("b", "1"), ("b", "2"), ("c", "1")]
        await asyncio.gather(*(hold(slots, *place) for place in places))

    run_in_virtual_time(story())
    assert granted == ["a/1", "a/2", "b/1", "c/1", "a/3", "b/2", "a/4"]


def test_one_that_gives_up_its_place_or_its_slot_holds_nobody_up() -> None:
    async def story() -> None:
        slots, entered = Slots(1, clock=loop_time), list[str]()

        async def hold(name: str) -> None:
            async with slots.turn(Key(name, name)):
                entered.append(name)
                await asyncio.sleep(10.0)

        tasks = {name: asyncio.create_task(hold(name)) for name in "abcd"}
        await asyncio.sleep(1.0)
        tasks["b"].cancel()
        tasks["a"].cancel()
        # Its turn has just been granted, but it has not run yet.
        await asyncio.sleep(0)
        tasks["c"].cancel()
        await asyncio.sleep(1.0)
        assert entered[0] == "a"
        assert entered[-1] == "d"
        tasks["d"].cancel()
        await asyncio.sleep(1.0)
        async with asyncio.timeout(1.0), slots.turn(Key("e", "e")):
            entered.append("e")

    run_in_virtual_time(story())


def test_the_time_spent_waiting_is_counted_by_deployment_also_while_it_waits() -> None:
    async def story() -> None:
        slots, first, second = Slots(1, clock=loop_time), Key("ns", "first"), Key("ns", "second")

        async def hold(key: Key) -> None:
            async with slots.turn(key):
                await asyncio.sleep(10.0)

        running = asyncio.gather(hold(first), hold(second))
        await asyncio.sleep(4.0)
        assert (slots.waited_s(first), slots.waited_s(second)) == (0.0, 4.0)
        slots.forget(second)
        await asyncio.sleep(1.0)
        assert slots.waited_s(second) == 1.0
        await running
        assert slots.waited_s(second) == 6.0
        slots.forget(second)
        assert slots.waited_s(second) == 0.0

    run_in_virtual_time(story())


def test_a_prompt_that_waited_for_a_slot_keeps_its_distance_to_the_next() -> None:
    starts: list[float] = []

    class Noting(Engines):
        async def ask(self, endpoint: Endpoint, prompt: str, max_tokens: int, timeout_s: float) -> Answer:
            starts.append(loop_time())
            return await super().ask(endpoint, prompt, max_tokens, timeout_s)

    async def story() -> None:
        slots = Slots(1, clock=loop_time)
        asked = replace(request(NEW, None, prompts=8, prompts_per_minute=60), key=Key("ns", "demo"))
        running = asyncio.create_task(Probe(Noting(0.1), slots=slots, clock=loop_time).run(asked))
        await asyncio.sleep(0.5)
        async with slots.turn(Key("other", "other")):
            await asyncio.sleep(5.2)
        await running

    run_in_virtual_time(story())
    gaps = [round(later - earlier, 3) for earlier, later in pairwise(starts)]
    assert gaps[0] == 5.7
    assert min(gaps) == 1.0


def test_a_namespace_holds_no_more_than_its_share_while_others_find_slots_free() -> None:
    async def story() -> None:
        slots, inside = Slots(4, 2, clock=loop_time), list[Key]()

        async def hold(key: Key) -> None:
            async with slots.turn(key):
                inside.append(key)
                await asyncio.sleep(60.0)
                inside.remove(key)

        greedy = [asyncio.create_task(hold(Key("greedy", str(number)))) for number in range(5)]
        await asyncio.sleep(1.0)
        assert len(inside) == 2
        other = asyncio.create_task(hold(Key("other", "one")))
        await asyncio.sleep(1.0)
        assert len(inside) == 3
        await asyncio.gather(other, *greedy)
        assert loop_time() == 180.0

    run_in_virtual_time(story())
