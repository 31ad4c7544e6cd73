"""A run at the console: its progress on standard error, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from dflash_controller.cli.bench.report import short
from dflash_controller.cli.bench.rows import Row
from dflash_controller.cli.bench.run import Benchmark, Side


async def interruptible(benchmark: Benchmark) -> None:
    """Runs it. Ctrl-C ends it with what was measured so far, and once more at once. Raises Unanswered."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def interrupt() -> None:
        if benchmark.interrupted:
            task.cancel()
            return
        click.echo("Interrupted. Waiting for the answers under way; Ctrl-C once more ends it at once.", err=True)
        benchmark.interrupt()

    # Not everywhere, and only in the main thread, can a signal be handled like this.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await benchmark.first_answers()
        await benchmark.run()
    except asyncio.CancelledError:
        if not benchmark.interrupted:
            raise
    finally:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def progress(cells: int) -> Iterator[tuple[Callable[[Row], None], Callable[[Side, str, int, float], None]]]:
    """Shows on standard error how far the run is: a bar on a terminal, else a line for each row."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, emoji=False)
    done = 0
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[cell]} of {task.total}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("first answers", total=cells, cell=1)

        def measured(each: Row) -> None:
            nonlocal done
            done += 1
            line = f"{done} of {cells}: {short(each)}"
            if console.is_terminal:
                console.print(line, markup=False)
            else:
                click.echo(line, err=True)

        def advance(side: Side, workload: str, concurrency: int, part: float) -> None:
            clients = concurrency * max(1, len(side.engines))
            text = f"{side.subject.name}, {workload}, clients: {clients}{'' if part else ' (warm-up)'}"
            bar.update(task, description=text, completed=done + part, cell=done + 1)

        yield measured, advance
