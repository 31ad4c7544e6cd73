"""The probe's prompts."""

from __future__ import annotations

import hashlib

from dflash_controller.model.probe import PROMPT_SET, prompts_name
from dflash_controller.observe.probe.prompts import prompts
from tests.support.probe_world import request

TEXTS = {"v1": "de50fed783286c2c"}
"""Digest of the largest set, by name of the set."""


def test_a_changed_prompt_changes_the_name_of_the_set() -> None:
    digest = hashlib.sha256("\0".join(prompts(1024)).encode()).hexdigest()[:16]
    assert TEXTS[PROMPT_SET] == digest, "kept answers would be paired with answers to other prompts: raise PROMPT_SET"


def test_no_two_prompts_are_the_same_and_fewer_are_a_beginning_of_more() -> None:
    many = prompts(1024)
    assert len(set(many)) == len(many) == 1024
    for count in (8, 64, 100):
        assert prompts(count) == many[:count]


def test_prompts_are_short_and_of_every_kind_from_the_start() -> None:
    assert all(40 < len(prompt) < 700 for prompt in prompts(1024))
    first = "\n".join(prompts(8))
    for word in ("Python", "euros", "vaccine", "interview", "Translate", "Summarise", "JSON", "story"):
        assert word in first


def test_the_name_tells_number_and_limit() -> None:
    assert prompts_name(64, 256) == "v1-64x256"
    assert request(None, None, prompts=8, max_tokens=16).prompts_name == "v1-8x16"
