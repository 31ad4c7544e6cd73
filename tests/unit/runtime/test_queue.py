"""The work queue: once, exclusive, later after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dflash_controller.runtime.queue import WorkQueue
from tests.support.virtual_time import run_in_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


def exact(**options: float) -> WorkQueue[str]:
    return WorkQueue(jitter=lambda: 1.0, **options)


async def work_until(queue: WorkQueue[str], end: float, work: Callable[[str], Awaitable[None]], workers: int = 4) -> None:
    """Run the queue until the loop's time is ``end``, and let what is under way finish."""
    running = asyncio.create_task(queue.run(workers, work))
    await asyncio.sleep(end - now())
    queue.close()
    await running


def test_key_added_many_times_is_worked_on_once() -> None:
    async def scenario() -> list[str]:
        done: list[str] = []
        queue = exact()
        for key in ("a", "b", "a", "a"):
            queue.add(key)
        assert queue.depth == 2

        async def work(key: str) -> None:
            done.append(key)

        await work_until(queue, 1.0, work)
        return done

    assert run_in_virtual_time(scenario()) == ["a", "b"]


def test_key_added_while_worked_on_comes_again_and_never_overlaps() -> None:
    async def scenario() -> list[tuple[float, str]]:
        log: list[tuple[float, str]] = []
        queue = exact()

        async def work(key: str) -> None:
            log.append((now(), "begin"))
            await asyncio.sleep(2.0)
            log.append((now(), "end"))

        queue.add("a")
        running = asyncio.create_task(work_until(queue, 10.0, work))
        await asyncio.sleep(1.0)
        queue.add("a")
        queue.add("a")
        await running
        return log

    assert run_in_virtual_time(scenario()) == [(0.0, "begin"), (2.0, "end"), (2.0, "begin"), (4.0, "end")]


def test_different_keys_run_side_by_side_up_to_the_number_of_workers() -> None:
    async def scenario() -> tuple[int, float]:
        active = most = 0
        finished = 0.0
        queue = exact()

        async def work(key: str) -> None:
            nonlocal active, most, finished
            active += 1
            most = max(most, active)
            await asyncio.sleep(1.0)
            active -= 1
            finished = now()

        for number in range(9):
            queue.add(str(number))
        await work_until(queue, 20.0, work, workers=3)
        return most, finished

    assert run_in_virtual_time(scenario()) == (3, 3.0)


def test_failures_back_off_exponentially_and_a_success_starts_over() -> None:
    async def scenario() -> list[float]:
        times: list[float] = []
        queue = exact(first_backoff_s=1.0, longest_backoff_s=8.0)

        async def work(key: str) -> None:
            times.append(now())
            if len(times) == 6:
                queue.succeeded(key)
                queue.add(key, 5.0)
            else:
                queue.retry(key)

        queue.add("a")
        await work_until(queue, 32.0, work)
        return times

    # 1, 2, 4, 8, then the longest: 8; success, 5 s as asked, and 1 s again.
    assert run_in_virtual_time(scenario()) == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 28.0, 29.0, 31.0]


def test_jitter_spreads_the_delay() -> None:
    async def scenario() -> float:
        return WorkQueue(first_backoff_s=4.0, jitter=lambda: 0.75).retry("a")

    assert run_in_virtual_time(scenario()) == 3.0


def test_of_two_delays_the_earlier_counts_and_an_event_overtakes_both() -> None:
    async def scenario() -> list[float]:
        times: list[float] = []
        queue = exact()

        async def work(key: str) -> None:
            times.append(now())

        queue.add("a", 60.0)
        queue.add("a", 30.0)
        queue.add("a", 45.0)
        running = asyncio.create_task(work_until(queue, 200.0, work))
        await asyncio.sleep(100.0)
        queue.add("a", 50.0)
        await asyncio.sleep(10.0)
        queue.add("a")
        await running
        return times

    assert run_in_virtual_time(scenario()) == [30.0, 110.0]


def test_wait_depth_and_age_are_told() -> None:
    async def scenario() -> tuple[float, float, list[float]]:
        waits: list[float] = []
        queue: WorkQueue[str] = WorkQueue(observe_wait=waits.append)

        async def work(key: str) -> None:
            await asyncio.sleep(3.0)

        queue.add("a")
        await asyncio.sleep(2.0)
        queue.add("b")
        depth_and_age = queue.depth, queue.oldest_s
        await work_until(queue, 20.0, work, workers=1)
        return *depth_and_age, waits

    assert run_in_virtual_time(scenario()) == (2, 2.0, [2.0, 3.0])


def test_closing_lets_work_finish_and_gives_out_nothing_more() -> None:
    async def scenario() -> list[str]:
        done: list[str] = []
        queue = exact()

        async def work(key: str) -> None:
            await asyncio.sleep(5.0)
            done.append(key)

        for key in ("a", "b"):
            queue.add(key)
        await work_until(queue, 1.0, work, workers=1)
        queue.add("c")
        return done

    assert run_in_virtual_time(scenario()) == ["a"]


def test_work_that_waits_for_nothing_lets_the_loop_run_between_two_keys() -> None:
    async def scenario() -> None:
        queue: WorkQueue[int] = WorkQueue()
        queue.add_all(range(500))
        done: list[int] = []
        seen: list[int] = []

        async def work(key: int) -> None:
            done.append(key)
            if key == 499:
                queue.close()

        async def other() -> None:
            for _ in range(3):
                seen.append(len(done))
                await asyncio.sleep(0)

        await asyncio.gather(queue.run(8, work), other())
        assert max(seen) <= 3 * 8

    run_in_virtual_time(scenario())
