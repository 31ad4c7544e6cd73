"""What engines stream as the answer to one greedy prompt, read event by event.

Both engines are asked for plain greedy decoding: no penalty, no sampling defaults of the model. The end-of-sequence token is not ignored:
what a model writes past its end is unlike any user's traffic, and so is its acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

MAX_TEXT = 2**20
"""Characters; 4,096 tokens are some 20,000."""


class ProbeFailure(Exception):
    """No usable answer. The message is one line and names neither address nor pod, which would change it with every pod."""


class Reading(Protocol):
    """An answer so far."""

    path: str
    tokens: int
    finished: bool

    def body(self, model: str, prompt: str, max_tokens: int) -> Mapping[str, Any]:
        """The request."""

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of the stream. Raises ProbeFailure where the engine says that it failed, KeyError, TypeError, AttributeError or
        ValueError where the event is not what this engine sends."""

    @property
    def text(self) -> str: ...

    @property
    def steps(self) -> int | None:
        """Verify steps of the answer, which give all its tokens but the first; None where the engine does not tell."""


def count(value: object) -> int:
    """A number of tokens or steps. Raises ValueError on anything else."""
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError("a count is not a number")
    return value


def bounded(text: str) -> str:
    """The text itself. Raises ValueError where it is too long."""
    if len(text) > MAX_TEXT:
        raise ValueError("the text is too long")
    return text
