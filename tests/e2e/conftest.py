"""What the slow level says while it runs."""

from __future__ import annotations

import sys
from typing import Protocol

import pytest


class Say(Protocol):
    """Writes a line to the terminal at once, from a worker of pytest-xdist too."""

    def __call__(self, text: str) -> None: ...


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """See Say."""

    def write(text: str) -> None:
        with capsys.disabled():
            # A worker's standard output belongs to pytest-xdist.
            print(f"\n{text}", file=sys.__stderr__, flush=True)

    return write
