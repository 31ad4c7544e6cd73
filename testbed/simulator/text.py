"""Greedy text that depends on the target and the prompt only, never on drafter, block size, load or release."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from testbed.simulator.batching import Request

_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were all
her she there would their we him been has when who will no more if out so up said what its about than into them can only other
time new some could these two may first then do any like my now over such our man me even most made after also did many off before
must well back through years where much your way
"""
_WORDS = tuple(_TEXT.split())
_IDS = {word: number for number, word in enumerate(_WORDS)}

_CHARACTERS_PER_TOKEN = 4
DEFAULT_TOKENS = (64, 512)
"""Range of the length of an answer without a limit, in tokens. The length also depends on target and prompt only."""


def prompt_tokens(prompt: str) -> int:
    """Returns the length of a prompt in tokens, four characters each."""
    return max(1, len(prompt) // _CHARACTERS_PER_TOKEN)


def _generator(target: str, prompt: str) -> random.Random:
    return random.Random(hashlib.sha256(f"{target}\0{prompt}".encode()).digest())


def natural_length(target: str, prompt: str) -> int:
    """Returns the number of tokens of the whole answer if the request sets no limit."""
    return random.Random(hashlib.sha256(f"length\0{target}\0{prompt}".encode()).digest()).randint(*DEFAULT_TOKENS)


def answer(target: str, prompt: str, tokens: int) -> list[str]:
    """Returns the first ``tokens`` tokens of the answer, to be joined without separator. A shorter answer is a prefix of a longer one."""
    words = _generator(target, prompt).choices(_WORDS, k=tokens)
    return [words[0], *(f" {word}" for word in words[1:])] if words else []


def flipped(tokens: Sequence[str], target: str, prompt: str, *, at: int) -> list[str]:
    """Returns the answer in which a near tie was decided the other way at token ``at``: from there on the text differs."""
    return [*tokens[:at], *answer(f"the other way {target}", prompt, len(tokens))[at:]]


def token_ids(tokens: Sequence[str]) -> list[int]:
    """Returns the tokens as numbers."""
    return [_IDS[token.strip()] for token in tokens]


def chances(target: str, drafter: str | None, drafter_revision: str | None, prompt: str) -> random.Random:
    """Returns the generator that decides which drafts of an answer are accepted. A greedy drafter's drafts depend on these arguments only,
    so they repeat."""
    return random.Random(hashlib.sha256(f"drafts\0{target}\0{drafter}\0{drafter_revision}\0{prompt}".encode()).digest())


class Steps:
    """Groups the tokens of a request as its engine committed them: one for the prefill, then those of each verify step."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._taken = 0
        self._end = 0

    def ends(self) -> Iterator[int]:
        """Yields the number of tokens of the answer after each step that ended since the last call."""
        request = self._request
        if self._end == 0 and request.generated:
            self._end = 1
            yield 1
        draws = request.draws or []
        while self._taken < len(draws):
            self._end = min(self._end + draws[self._taken], request.max_tokens)
            self._taken += 1
            yield self._end
