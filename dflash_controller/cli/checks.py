"""One verdict on a file: what the API server refuses, what the operator would say, and which flags the engine does not know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_controller.cli import server_checks
from dflash_controller.cli.judgement import judge
from dflash_controller.cli.resolution import Made, advice
from dflash_controller.engines.resolve import OperatorDefaults

By = Literal["API server", "operator", "engine"]


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
    made: Made | None = None
    """What the operator makes of it, be it that its engine then does not start; None if it makes nothing."""

    @property
    def accepted(self) -> bool:
        """Whether the API server takes the object. The operator may still refuse to act on it."""
        return not any(problem.by == "API server" for problem in self.problems)


def check(manifest: Mapping[str, Any], name: str, namespace: str, defaults: OperatorDefaults) -> Verdict:
    """Returns the verdict on a DFlashDeployment.

    What the API server refuses never reaches the operator. It is judged as if that was mended, as far as the rest tells.
    """
    refused = server_checks.refusals(manifest)
    judged = judge(manifest, name, namespace, defaults, refused)
    problems = [Finding("API server", refusal.field, refusal.message) for refusal in refused]
    problems += [Finding("operator", problem.field, f"{problem.message}. {problem.remedy}") for problem in judged.problems]
    unknown = [Finding("engine", problem.field, f"{problem.message}. {problem.remedy}") for problem in judged.unknown_flags]
    hints = [] if judged.made is None else advice(judged.made)
    if judged.doubt:
        return Verdict(tuple(problems), (*hints, *(f"{finding} ({judged.doubt})" for finding in unknown)), judged.made)
    return Verdict((*problems, *unknown), tuple(hints), judged.made)
