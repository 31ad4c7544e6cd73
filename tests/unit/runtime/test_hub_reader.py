"""When the hub is asked, how often, and who is told of an answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dflash_controller.model.hub import HubAnswer, ModelFacts, ModelQuestion, ModelQuestions
from dflash_controller.model.measurement import Absent, Error
from dflash_controller.model.snapshot import Key
from dflash_controller.runtime.hub_reader import LASTS, RECENT_S, HubReader
from tests.support.virtual_time import run_in_virtual_time

A, B = "a" * 40, "b" * 40
MAIN, PINNED = ModelQuestion("org/drafter", "main"), ModelQuestion("org/drafter", A)
KEY, OTHER = Key("ns", "chat"), Key("ns", "code")
GONE = Error("https://hub cannot be reached")
WATCHES = ModelQuestions(watched=(MAIN,))
HOUR = 3600.0


class Hub:
    """Answers after ``takes_s``; ``answers`` may change at any time."""

    def __init__(self, answers: Mapping[ModelQuestion, HubAnswer] | None = None) -> None:
        self.answers = dict(answers or {MAIN: ModelFacts(A), PINNED: ModelFacts(A)})
        self.asked: list[tuple[float, ModelQuestion]] = []
        self.takes_s = 1.0
        self.closed = False

    async def ask(self, question: ModelQuestion) -> HubAnswer:
        self.asked.append((asyncio.get_running_loop().time(), question))
        await asyncio.sleep(self.takes_s)
        return self.answers[question]

    async def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.hub = Hub()
        self.told: list[Key] = []
        self.reader = HubReader(
            self.hub, "https://hub", self.told.append, refresh_s=600.0, retry_s=60.0, clock=asyncio.get_running_loop().time
        )

    def pending(self, *questions: ModelQuestion, intent: str = "first", key: Key = KEY) -> None:
        self.reader.want(key, ModelQuestions(pending=questions, intent=intent))

    def resolved(self, question: ModelQuestion = MAIN, intent: str = "first", key: Key = KEY) -> HubAnswer | None:
        return self.reader.knowledge(key).resolved(question, intent)

    def watched(self, key: Key = KEY) -> HubAnswer | None:
        return self.reader.knowledge(key).watched(MAIN)


def played(scene: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        world = World()
        try:
            await scene(world)
        finally:
            await world.reader.close()
        assert world.hub.closed

    run_in_virtual_time(play())


def test_a_question_is_answered_in_the_background_and_the_deployment_told() -> None:
    async def scene(world: World) -> None:
        world.pending(MAIN)
        assert world.resolved() is None
        assert not world.told
        await asyncio.sleep(2)
        assert world.resolved() == ModelFacts(A)
        assert world.told == [KEY]

    played(scene)


def test_deployments_with_the_same_question_share_the_answer() -> None:
    async def scene(world: World) -> None:
        for number in range(50):
            world.pending(MAIN, key=Key("ns", f"chat-{number}"))
        await asyncio.sleep(2)
        assert len(world.hub.asked) == 1
        assert len(world.told) == 50

    played(scene)


def test_a_branch_is_asked_about_again_at_most_every_ten_minutes_and_a_move_is_told() -> None:
    async def scene(world: World) -> None:
        world.reader.want(KEY, WATCHES)
        await asyncio.sleep(2)
        world.told.clear()
        await asyncio.sleep(HOUR)
        assert 5 <= len(world.hub.asked) <= 7
        assert not world.told, "the same answer is no news"
        world.hub.answers[MAIN] = ModelFacts(B)
        await asyncio.sleep(700)
        assert world.watched() == ModelFacts(B)
        assert world.told == [KEY]

    played(scene)


def test_a_commit_is_asked_about_once() -> None:
    async def scene(world: World) -> None:
        world.pending(PINNED)
        await asyncio.sleep(HOUR)
        world.reader.want(KEY, ModelQuestions())
        world.pending(PINNED, key=OTHER)
        assert world.resolved(PINNED, key=OTHER) == ModelFacts(A)
        await asyncio.sleep(HOUR)
        assert len(world.hub.asked) == 1

    played(scene)


def test_nobody_asks_when_nobody_wants_to_know() -> None:
    async def scene(world: World) -> None:
        world.reader.want(KEY, WATCHES)
        await asyncio.sleep(2)
        world.reader.forget(KEY)
        await asyncio.sleep(HOUR)
        assert len(world.hub.asked) == 1

    played(scene)


def test_a_branch_is_resolved_anew_for_every_change_and_not_from_memory() -> None:
    async def scene(world: World) -> None:
        world.reader.want(KEY, WATCHES)
        await asyncio.sleep(100)
        world.hub.answers[MAIN] = ModelFacts(B)
        world.reader.want(KEY, ModelQuestions(watched=(MAIN,), pending=(MAIN,), intent="restart"))
        assert world.resolved(intent="restart") is None
        await asyncio.sleep(2)
        assert world.resolved(intent="restart") == ModelFacts(B)
        assert world.resolved(intent="another change") is None

    played(scene)


def test_a_question_under_way_when_the_change_is_made_does_not_count() -> None:
    async def scene(world: World) -> None:
        world.hub.takes_s = 10.0
        world.reader.want(KEY, WATCHES)
        await asyncio.sleep(RECENT_S + 3)
        world.pending(MAIN, intent="restart")
        await asyncio.sleep(10)
        assert world.watched() == ModelFacts(A)
        assert world.resolved(intent="restart") is None
        world.hub.answers[MAIN] = ModelFacts(B)
        await asyncio.sleep(10)
        assert world.resolved(intent="restart") == ModelFacts(B)

    played(scene)


def test_an_answer_of_just_now_counts_and_is_told_at_once() -> None:
    async def scene(world: World) -> None:
        world.pending(MAIN)
        await asyncio.sleep(1.5)
        world.pending(MAIN, key=OTHER)
        assert world.resolved(key=OTHER) == ModelFacts(A)
        assert world.told == [KEY, OTHER]
        assert len(world.hub.asked) == 1

    played(scene)


def test_a_failure_is_tried_again_ever_more_seldom() -> None:
    async def scene(world: World) -> None:
        world.hub.answers[MAIN] = GONE
        world.pending(MAIN)
        await asyncio.sleep(2 * HOUR)
        times = [round(at) for at, _ in world.hub.asked]
        assert times[:5] == [0, 61, 182, 423, 904]
        assert all(later - earlier <= 601 for earlier, later in itertools.pairwise(times))
        assert world.resolved() == GONE
        world.hub.answers[MAIN] = ModelFacts(A)
        await asyncio.sleep(601)
        assert world.resolved() == ModelFacts(A)

    played(scene)


def test_one_failure_hides_no_good_answer_of_a_branch_that_is_watched() -> None:
    async def scene(world: World) -> None:
        world.reader.want(KEY, WATCHES)
        await asyncio.sleep(2)
        world.told.clear()
        world.hub.answers[MAIN] = Absent("the repository became private")
        while len(world.hub.asked) < LASTS:
            await asyncio.sleep(60)
            assert world.watched() == ModelFacts(A)
        assert not world.told
        await asyncio.sleep(HOUR)
        assert world.watched() == Absent("the repository became private")
        assert world.told == [KEY]

    played(scene)


def test_an_error_of_our_own_is_a_failure_like_others() -> None:
    async def scene(world: World) -> None:
        world.hub.answers.clear()
        world.pending(MAIN)
        await asyncio.sleep(2)
        assert isinstance(world.resolved(), Error)
        world.hub.answers[MAIN] = ModelFacts(A)
        await asyncio.sleep(HOUR)
        assert world.resolved() == ModelFacts(A)

    played(scene)


def test_without_a_hub_every_answer_says_so_at_once() -> None:
    reader = HubReader(None, None, lambda key: None, refresh_s=600.0)
    reader.want(KEY, ModelQuestions(pending=(MAIN,), intent="first"))
    answer = reader.knowledge(KEY).resolved(MAIN, "first")
    assert answer == Absent("the operator asks no hub (the chart's huggingFace.endpoint, or DFLASH_HUGGING_FACE_ENDPOINT, is off)")


def test_a_reader_that_is_closed_asks_nothing() -> None:
    async def scene(world: World) -> None:
        await world.reader.close()
        world.pending(MAIN)
        await asyncio.sleep(10)
        assert not world.hub.asked

    played(scene)
