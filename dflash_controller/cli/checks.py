"""One verdict on a file: what the API server refuses, and what the operator would say of what the API server takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_controller.cli import server_checks
from dflash_controller.cli.resolution import Made, advice, make
from dflash_controller.engines.resolve import OperatorDefaults

By = Literal["API server", "operator"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. ``field`` is empty where the message names it."""

    by: By
    field: str
    message: str

    def __str__(self) -> str:
        return server_checks.sentence(self.field, self.message)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``problems`` make the object invalid; ``advice`` does not."""

    problems: tuple[Finding, ...]
    advice: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the API server takes the object. The operator may still refuse to act on it."""
        return not any(problem.by == "API server" for problem in self.problems)


def check(manifest: Mapping[str, Any], name: str, namespace: str, defaults: OperatorDefaults) -> Verdict:
    """Returns the verdict on a DFlashDeployment."""
    refused = tuple(Finding("API server", refusal.field, refusal.message) for refusal in server_checks.refusals(manifest))
    if refused:
        return Verdict(refused)
    made = make(manifest, name, namespace, defaults)
    if isinstance(made, Made):
        return Verdict((), tuple(advice(made)))
    return Verdict(tuple(Finding("operator", problem.field, f"{problem.message}. {problem.remedy}") for problem in made))
