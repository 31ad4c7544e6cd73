"""Which probes run, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.probe import Endpoint, ProbeRequest, ProbeRuns
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.probe.run import ProbeError
from dflash_controller.runtime.prober import Prober
from tests.support.probe_world import request
from tests.support.virtual_time import run_in_virtual_time

NEW, OLD = (Endpoint(revision, revision, "127.0.0.1", 1, "vllm", "m") for revision in ("new", "old"))
KEY = Key("ns", "demo")
ASKED = request(NEW, OLD)


class Probes:
    """Runs of 10 s that bring what ``outcome`` says; a log of what happened when."""

    def __init__(self, outcome: Callable[[int], Exception | None] = lambda _: None) -> None:
        self.log: list[tuple[float, str, str]] = []
        self.outcome = outcome
        self.runs = self.inside = self.most = 0
        self.waited: dict[Key, float] = {}
        self.closed = False

    def note(self, what: str, asked: ProbeRequest) -> None:
        self.log.append((asyncio.get_running_loop().time(), what, asked.key.name))

    async def run(self, asked: ProbeRequest) -> ProbeRuns:
        self.runs += 1
        number = self.runs
        self.note("begins", asked)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            self.note("cancelled", asked)
            raise
        finally:
            self.inside -= 1
        self.note("ends", asked)
        if (error := self.outcome(number)) is not None:
            raise error
        return ProbeRuns(ProbeRun("new", asked.prompts_name, (), float(number)), None)

    def waited_s(self, key: Key) -> float:
        return self.waited.get(key, 0.0)

    def forget(self, key: Key) -> None:
        self.waited.pop(key, None)

    async def close(self) -> None:
        self.closed = True


class Scene:
    """A prober, its probes, and whom it told what."""

    def __init__(self, outcome: Callable[[int], Exception | None] = lambda _: None) -> None:
        self.probes = Probes(outcome)
        self.told: list[tuple[float, Key]] = []
        self.prober = Prober(self.probes, lambda key: self.told.append((asyncio.get_running_loop().time(), key)))


def play(scene: Scene, story: Callable[[Scene], Coroutine[Any, Any, None]]) -> list[tuple[float, str, str]]:
    async def whole() -> None:
        try:
            await story(scene)
        finally:
            await scene.prober.close()

    run_in_virtual_time(whole())
    return scene.probes.log


def test_what_is_wanted_again_goes_on_and_its_result_stays() -> None:
    async def story(scene: Scene) -> None:
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(5)
        scene.prober.want(KEY, replace(ASKED, prompts_per_minute=600, timeout_s=5.0))
        assert not scene.prober.answers(KEY)
        await asyncio.sleep(6)
        found = scene.prober.answers(KEY)
        assert found
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(1000)
        assert scene.prober.answers(KEY) == found
        assert scene.prober.error(KEY) is None

    scene = Scene()
    assert play(scene, story) == [(0, "begins", "demo"), (10, "ends", "demo")]
    assert scene.told == [(10, KEY)]


def test_other_pods_or_prompts_break_off_a_run_and_start_another() -> None:
    changes: list[dict[str, Any]] = [
        {"candidate": replace(NEW, pod="another")},
        {"reference": None},
        {"prompts": 8},
        {"max_tokens": 16},
    ]

    async def story(scene: Scene) -> None:
        scene.prober.want(KEY, ASKED)
        for change in changes:
            await asyncio.sleep(2)
            scene.prober.want(KEY, replace(ASKED, **change))
        await asyncio.sleep(11)
        assert scene.prober.answers(KEY)

    log = play(Scene(), story)
    assert [what for _, what, _ in log] == ["begins", *["cancelled", "begins"] * 4, "ends"]
    assert [at for at, what, _ in log if what == "cancelled"] == [2, 4, 6, 8]
    assert [at for at, what, _ in log if what == "ends"] == [18]


def test_a_run_no_longer_wanted_is_broken_off_and_its_result_forgotten() -> None:
    async def story(scene: Scene) -> None:
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(5)
        scene.prober.want(KEY, None)
        scene.prober.want(KEY, None)
        await asyncio.sleep(100)
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(11)
        assert scene.prober.answers(KEY)
        scene.prober.want(KEY, None)
        assert not scene.prober.answers(KEY)

    scene = Scene()
    assert [what for _, what, _ in play(scene, story)] == ["begins", "cancelled", "begins", "ends"]
    assert scene.told == [(115, KEY)], "a run that was broken off is told to nobody"


def test_a_failed_run_is_tried_again_after_a_minute_while_it_is_wanted() -> None:
    async def story(scene: Scene) -> None:
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(11)
        assert scene.prober.error(KEY) == "The candidate failed."
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(70)
        assert scene.prober.error(KEY) == "The probe failed because of an internal error; see the operator's log."
        await asyncio.sleep(70)
        assert scene.prober.error(KEY) is None
        assert scene.prober.answers(KEY)

    errors = {1: ProbeError("The candidate failed."), 2: RuntimeError("a mistake")}
    scene = Scene(errors.get)
    assert [at for at, what, _ in play(scene, story) if what == "begins"] == [0, 70, 140]
    assert [at for at, _ in scene.told] == [10, 80, 150], "told of every end, well or not"


def test_a_failed_run_that_nobody_wants_is_not_tried_again() -> None:
    async def story(scene: Scene) -> None:
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(30)
        scene.prober.want(KEY, None)
        assert scene.prober.error(KEY) is None
        await asyncio.sleep(1000)

    assert len(play(Scene(lambda _: ProbeError("no")), story)) == 2


def test_no_run_waits_for_the_end_of_another() -> None:
    async def story(scene: Scene) -> None:
        for number in range(500):
            key = Key("ns", f"d{number}")
            scene.prober.want(key, replace(ASKED, key=key))
        await asyncio.sleep(11)

    scene = Scene()
    assert {at for at, what, _ in play(scene, story) if what == "begins"} == {0}
    assert scene.probes.most == 500


def test_what_a_candidates_probe_has_waited_is_told_in_whole_steps_until_another_candidate_is_probed() -> None:
    async def story(scene: Scene) -> None:
        scene.prober.want(KEY, replace(ASKED, candidate=None))
        scene.probes.waited[KEY] = 100.0
        assert scene.prober.waited_s(KEY) == {}
        scene.prober.want(KEY, ASKED)
        assert scene.prober.waited_s(KEY) == {}, "what stable's answers waited was before the trial"
        scene.probes.waited[KEY] = 301.0
        await asyncio.sleep(11)
        scene.prober.want(KEY, None)
        assert scene.prober.waited_s(KEY) == {"new": 600.0}, "the trial goes on after its probe"
        scene.prober.want(KEY, replace(ASKED, candidate=replace(NEW, pod="another")))
        assert scene.prober.waited_s(KEY) == {"new": 600.0}
        scene.prober.want(KEY, replace(ASKED, candidate=replace(NEW, revision="newer")))
        assert scene.prober.waited_s(KEY) == {}
        scene.probes.waited[KEY] = 301.0
        scene.prober.forget(KEY)
        assert scene.prober.waited_s(KEY) == {}

    play(Scene(), story)


def test_the_background_part_ends_every_run_with_itself() -> None:
    async def story(scene: Scene) -> None:
        part = asyncio.create_task(scene.prober.run())
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(5)
        part.cancel()
        await asyncio.wait([part])
        assert scene.probes.closed
        scene.prober.want(KEY, ASKED)
        await asyncio.sleep(100)

    assert play(Scene(), story) == [(0, "begins", "demo"), (5, "cancelled", "demo")]
