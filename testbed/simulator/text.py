"""Greedy text that depends on the target and the prompt alone: never on drafter, block size, load or release."""

from __future__ import annotations

import hashlib
import random

_TEXT = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were all
her she there would their we him been has when who will no more if out so up said what its about than into them can only other
time new some could these two may first then do any like my now over such our man me even most made after also did many off before
must well back through years where much your way
"""
_WORDS = tuple(_TEXT.split())

_CHARACTERS_PER_TOKEN = 4
DEFAULT_TOKENS = (64, 512)
"""Length of an answer that no limit cuts: also a function of target and prompt."""


def prompt_tokens(prompt: str) -> int:
    """Length of a prompt in tokens, four characters each."""
    return max(1, len(prompt) // _CHARACTERS_PER_TOKEN)


def _generator(target: str, prompt: str) -> random.Random:
    return random.Random(hashlib.sha256(f"{target}\0{prompt}".encode()).digest())


def natural_length(target: str, prompt: str) -> int:
    """Tokens of the whole answer where the request sets no limit."""
    return random.Random(hashlib.sha256(f"length\0{target}\0{prompt}".encode()).digest()).randint(*DEFAULT_TOKENS)


def answer(target: str, prompt: str, tokens: int) -> list[str]:
    """The first ``tokens`` tokens of the answer, to be joined without separator; a shorter answer is a prefix of a longer one."""
    words = _generator(target, prompt).choices(_WORDS, k=tokens)
    return [words[0], *(f" {word}" for word in words[1:])] if words else []
