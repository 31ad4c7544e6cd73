"""From the object the API server returned to a Spec, or to the list of what is wrong with it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dflash_controller.api.patterns import REFUSALS
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Spec

_REMEDIES = {
    "missing": "Set it.",
    "extra_forbidden": "Remove it, or check its spelling with kubectl explain dfd.spec --recursive.",
    "literal_error": "Use one of the values named.",
}


def parse_spec(obj: Mapping[str, Any]) -> Spec | list[Problem]:
    """The spec of a DFlashDeployment (the whole object is given). Rules between fields are ``validation.problems``' part."""
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return [Problem("spec", "is missing", "Set it; spec.target.model is the least that is needed.")]
    try:
        return Spec.model_validate(spec)
    except ValidationError as error:
        return _problems(error.errors(include_url=False, include_input=False))


def serving_part(obj: Mapping[str, Any]) -> Spec:
    """Returns what an invalid spec still says about what serves: replicas, rollout and suspend, each with its default where it is invalid.

    What runs is scaled and repaired by it. The target is a placeholder, because nothing new is rendered from it.
    """
    spec = obj.get("spec")
    written = spec if isinstance(spec, Mapping) else {}
    found: dict[str, Any] = {"target": {"model": "invalid/spec"}}
    for field in ("replicas", "suspend", "rollout"):
        if field in written:
            with contextlib.suppress(ValidationError):
                Spec.model_validate({**found, field: written[field]})
                found[field] = written[field]
    return Spec.model_validate(found)


def json_path(location: Sequence[int | str], root: str = "spec") -> str:
    """``("engine", "env", 0, "name")`` as ``spec.engine.env[0].name``."""
    return root + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _problems(errors: Sequence[ErrorDetails]) -> list[Problem]:
    found: dict[str, Problem] = {}
    for error in errors:
        # The block sizes of a union (int or string) are part of pydantic's location but not of the object.
        location = [part for part in error["loc"] if part != "[key]" and not _union_arm(part)]
        path = json_path(location)
        if len(location) < len(error["loc"]):
            found.pop(path, None)  # the last block size, text, says it best
        found.setdefault(path, _problem(path, error))
    return list(found.values())


def _problem(path: str, error: ErrorDetails) -> Problem:
    if error["type"] == "string_pattern_mismatch":
        refusal = REFUSALS[error["ctx"]["pattern"]]
        return Problem(path, refusal.allowed, f"{refusal.remedy[0].upper()}{refusal.remedy[1:]}.")
    if error["type"] == "extra_forbidden":
        return Problem(path, "is not a field", _REMEDIES[error["type"]])
    message = error["msg"].removeprefix("Input ").replace("should", "must", 1)
    return Problem(path, message, _REMEDIES.get(error["type"], "Change it."))


def _union_arm(part: int | str) -> bool:
    return isinstance(part, str) and (part == "int" or part.startswith(("constrained-str", "function-", "str")))
