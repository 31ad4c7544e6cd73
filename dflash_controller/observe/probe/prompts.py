"""The probe's prompts: the same ones, in the same order, for every engine, revision and operator that knows the set."""

from __future__ import annotations

from collections.abc import Mapping
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
    return f"### Instruction:\n{numbered(instruction, variation)}\n\n### Response:\n"


def numbered(instruction: str, variation: int) -> str:
    """The instruction; from its second variation on with a number in front, which makes another text of it."""
    return instruction if variation == 1 else f"Task {variation}. {instruction}"


@cache
def by_kind() -> Mapping[str, tuple[str, ...]]:
    """The written instructions by their kind, for instance ``code``."""
    text = resources.files("dflash_controller.observe.probe").joinpath("prompts.yaml").read_text(encoding="utf-8")
    return {kind: tuple(instruction.strip() for instruction in written) for kind, written in yaml.safe_load(text).items()}


@cache
def _written() -> tuple[str, ...]:
    """One prompt of every kind in turn, so that a short run sees every kind too."""
    turns = zip_longest(*by_kind().values())
    return tuple(instruction for turn in turns for instruction in turn if instruction is not None)
