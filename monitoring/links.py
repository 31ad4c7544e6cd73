"""Addresses of the published documentation. Pure."""

from __future__ import annotations

DOCS = "https://dflash-operator.example.com/docs"
"""Base of every link in alerts and dashboards. After a change, run `python -m hack.dashboards`."""


def runbook(name: str) -> str:
    """Returns the address of ``docs/runbooks/<name>.md``."""
    return f"{DOCS}/runbooks/{name}.md"
