"""From the object the API server returned to a Spec, or to the list of what is wrong with it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dflash_controller.api.patterns import REFUSALS
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Spec

_UNQUOTED = "Write it without quotes."
_SAID: dict[str, tuple[str, str]] = {
    "missing": ("is required", "Set it."),
    "extra_forbidden": ("is not a field", "Remove it, or check its spelling with {explain} --recursive."),
    "bool": ("must be true or false", _UNQUOTED),
    "int": ("must be a whole number", _UNQUOTED),
    "float": ("must be a number", _UNQUOTED),
    "finite_number": ("must be a finite number", "Write it in digits."),
    "literal_error": ("must be {expected}", "Use one of the values named."),
    "string_type": ("must be a string", "Write it as text; put a number, or true and false, in quotes."),
    "string_too_short": ("must have {min_length} or more characters", "Write it in full, or remove the field."),
    "string_too_long": ("must have {max_length} or fewer characters", "Shorten it."),
    "greater_than_equal": ("must be at least {ge}", "Raise it."),
    "less_than_equal": ("must be at most {le}", "Lower it."),
    "tuple_type": ("must be a list", "Write each item on a line of its own, after a dash."),
    "too_short": ("must have {min_length} or more items", "Add what is missing, or remove the field."),
    "too_long": ("must have {max_length} or fewer items", "Remove some."),
    "dict_type": ("must be an object", "Write its fields below it; {explain} names them."),
    "model_type": ("must be an object", "Write its fields below it; {explain} names them."),
}
"""What is said of each type of error that pydantic knows for the types of the spec: the message and the remedy."""


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
    kind = error["type"]
    message, remedy = _SAID.get(kind) or _SAID.get(kind.partition("_")[0]) or ("cannot be used", "See {explain}.")
    described = path.rpartition(".")[0] if kind == "extra_forbidden" else path
    values = {"explain": "kubectl explain dfd." + re.sub(r"\[\d+\]", "", described), **error.get("ctx", {})}
    return Problem(path, message.format(**values), remedy.format(**values))


def _union_arm(part: int | str) -> bool:
    return isinstance(part, str) and (part == "int" or part.startswith(("constrained-str", "function-", "str")))
