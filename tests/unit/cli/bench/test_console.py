"""Ctrl-C: once for the answers under way, twice for at once."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from dflash_controller.cli.bench.console import interruptible, progress
from dflash_controller.cli.bench.rows import Plan
from dflash_controller.cli.bench.run import Benchmark, Side
from tests.support.bench_world import row, subject


class Slow(Benchmark):
    """Has no answers to wait for, and never ends by itself."""

    def __init__(self, ends: bool) -> None:
        super().__init__(Plan(("math",), (1,), 1.0, None, 16), [])
        self._ends = ends
        self._over = asyncio.Event()
        self.cancelled = False

    def interrupt(self) -> None:
        super().interrupt()
        if self._ends:
            self._over.set()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    async def first_answers(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    async def run(self) -> list[object]:  # type: ignore[override]
        try:
            await asyncio.wait_for(self._over.wait(), 60)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return []


@pytest.mark.parametrize("ends", [True, False], ids=["once", "twice"])
def test_ctrl_c_is_no_failure(ends: bool, capsys: pytest.CaptureFixture[str]) -> None:
    async def both() -> Slow:
        benchmark = Slow(ends)
        await interruptible(benchmark)
        return benchmark

    before = signal.getsignal(signal.SIGINT)
    found = asyncio.run(both())
    assert (found.interrupted, found.cancelled) == (True, not ends)
    assert capsys.readouterr().err.startswith("Interrupted. Waiting for the answers under way; ")
    assert signal.getsignal(signal.SIGINT) is before


def test_where_nobody_watches_each_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    now = subject("http://10.0.0.1:30000")
    with progress(2) as (measured, advance):
        for each in (row(), row("chat")):
            advance(Side(now, lambda: asyncio.sleep(0, now), now), each.cell.workload, 8, 0.5)
            measured(each)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "1 of 2: qwen, math, 8 clients: 800 tokens/s, 6.50 accepted",
        "2 of 2: qwen, chat, 8 clients: 800 tokens/s, 6.50 accepted",
    ]
