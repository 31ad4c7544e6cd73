"""Which engine release a test runs: asked of the table, so that a test names a version only where it is about that release."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_controller.engines.releases import TABLE


def default_release(engine: str) -> str:
    """The release that runs where nobody names one: the newest tested."""
    return TABLE[engine].default


def floor_release(engine: str) -> str:
    """The oldest that is accepted."""
    return TABLE[engine].floor


def contract_releases(engine: str) -> Sequence[str]:
    """The contract-tested ones, ascending."""
    return TABLE[engine].tested
