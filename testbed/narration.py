"""How the demos speak."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(title: str) -> Iterator[None]:
    started = time.monotonic()
    print(f"\n==> {title}", flush=True)
    yield
    print(f"    ({time.monotonic() - started:.1f} s)", flush=True)


def say(text: str) -> None:
    print("\n".join(f"    {line}" for line in text.rstrip().splitlines()), flush=True)
