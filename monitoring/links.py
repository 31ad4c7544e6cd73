"""Where the documentation is published. Pure."""

from __future__ import annotations

DOCS = "https://dflash-operator.example.com/docs"
"""Base of every link in alerts and dashboards: change it here, then `python -m hack.dashboards`."""


def runbook(name: str) -> str:
    """Address of ``docs/runbooks/<name>.md``."""
    return f"{DOCS}/runbooks/{name}.md"
