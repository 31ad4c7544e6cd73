"""Output of the demos: a title before each step, lines while it runs, and its duration."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WIDTH = 118
_printing = threading.Lock()


@contextmanager
def step(title: str, usually: str = "") -> Iterator[None]:
    """Prints the title and duration of a step. ``usually`` is its usual duration on a quiet machine with two cores, such as ``3 s``."""
    started = time.monotonic()
    show(f"\n==> {title}{f' (usually {usually})' if usually else ''}")
    yield
    say(f"({time.monotonic() - started:.1f} s)")


def say(text: str) -> None:
    """Prints text unchanged but indented."""
    show(textwrap.indent(text.rstrip(), "    "))


def show(text: str) -> None:
    """Prints whole lines at once, even if several threads print."""
    with _printing:
        print(text, flush=True)


class Teller:
    """Prints lines with the seconds since its creation. ``label`` distinguishes several that print at the same time."""

    def __init__(self, label: str = "") -> None:
        self._label = f"{label:<10}" if label else ""
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def tell(self, text: str) -> None:
        """Prints one line, folded if it is long."""
        head = f"    {self.elapsed_s:5.1f} s  {self._label}"
        show(textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False))


def duration(seconds: float) -> str:
    """Returns ``8.3 s``, ``42 s`` or ``2 min 5 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
