"""The probe's prompts: the same ones, in the same order, for every engine, revision and operator that knows the set."""

from __future__ import annotations

from functools import cache
from importlib import resources
from itertools import zip_longest

import yaml


def prompts(count: int) -> tuple[str, ...]:
    """The first ``count`` prompts. Beyond the written ones they repeat with a number in front, which makes another text of each.

    Prompts are plain text in the form instruction models are tuned on, not chats: engines differ in how they find and apply a chat
    template, and the probe must send every engine the same tokens.
    """
    written = _written()
    return tuple(_prompt(written[number % len(written)], 1 + number // len(written)) for number in range(count))


def _prompt(instruction: str, variation: int) -> str:
    numbered = instruction if variation == 1 else f"Task {variation}. {instruction}"
    return f"### Instruction:\n{numbered}\n\n### Response:\n"


@cache
def _written() -> tuple[str, ...]:
    """One prompt of every kind in turn, so that a short run sees every kind too."""
    text = resources.files("dflash_controller.observe.probe").joinpath("prompts.yaml").read_text(encoding="utf-8")
    turns = zip_longest(*yaml.safe_load(text).values())
    return tuple(instruction.strip() for turn in turns for instruction in turn if instruction is not None)
