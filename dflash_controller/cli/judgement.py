"""What the operator would say about a DFlashDeployment, and which of its flags the engine does not know.

The operator never sees what the API server refuses. Such an object is judged without what is refused, so that its author need not run
``validate`` again to read the rest. Nothing is said that depends on what was left out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_controller.api import defaults as api
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Spec
from dflash_controller.catalog import Catalog
from dflash_controller.cli.resolution import Made
from dflash_controller.cli.server_checks import Refusal
from dflash_controller.engines import ENGINES
from dflash_controller.engines.flags import EXTRA_ARGS
from dflash_controller.engines.protocol import ReleaseProfile
from dflash_controller.engines.resolve import OperatorDefaults, Resolved, resolve, spec_problems

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_NAMED = re.compile(r'"([^"]+)"')
_ROUNDS = 50
"""Rounds of leaving out what cannot be read. Each leaves out a field, and one field may only show that another is wrong."""
_ENGINE = ("spec.engine.name", "spec.engine.version")
_MODELS = ("spec.target", "spec.drafter")
_DEPENDS: Mapping[str, tuple[str, ...]] = {
    EXTRA_ARGS: _ENGINE,
    "spec.engine.version": _ENGINE,
    "spec.tuning": (*_ENGINE, *_MODELS),
    "spec.blockSize": _MODELS,
    "spec.storage": (*_MODELS, "spec.podTemplate"),
    "spec.podTemplate": (*_MODELS, "spec.storage"),
}
"""Part of the spec -> the fields that a problem of it depends on, besides the part itself."""
_COMMAND_LINE = ("spec.target", "spec.drafter", "spec.engine", "spec.parallelism", "spec.accelerator", "spec.blockSize", "spec.tuning")
"""Fields that combinations of flags depend on."""


@dataclass(frozen=True, slots=True)
class Judged:
    """``problems`` are the operator's, ``unknown_flags`` the engine's."""

    problems: tuple[Problem, ...] = ()
    unknown_flags: tuple[Problem, ...] = ()
    doubt: str = ""
    """Why the engine may know the flags all the same; empty if it does not."""
    made: Made | None = None
    """What the operator makes of it; None if it makes nothing."""


@dataclass(frozen=True, slots=True)
class _Readable:
    """The part of a spec that can be read, and the fields that were left out."""

    spec: Spec
    left_out: frozenset[str] = frozenset()
    places: tuple[int, ...] | None = None
    """Places in the written extraArgs of those that are left; None if none was left out."""
    unreadable: tuple[Problem, ...] = ()
    """What is wrong with the fields that were left out."""

    def written(self, problem: Problem) -> Problem:
        """Returns a problem with the place of an argument as it is written."""
        found = re.fullmatch(re.escape(EXTRA_ARGS) + r"\[(\d+)\]", problem.field)
        return problem if found is None or self.places is None else replace(problem, field=f"{EXTRA_ARGS}[{self.places[int(found[1])]}]")


def judge(manifest: Mapping[str, Any], name: str, namespace: str, defaults: OperatorDefaults, refused: Sequence[Refusal] = ()) -> Judged:
    """Returns what is wrong with a deployment that the operator sees for the first time. ``refused`` is what the API server refuses."""
    if refused:
        readable = _readable(manifest)
        if readable is None:
            return Judged()
    else:
        spec = parse_spec(manifest)
        if not isinstance(spec, Spec):
            return Judged(tuple(spec))
        readable = _Readable(spec)
    spec, catalog = readable.spec, Catalog.load()
    engine, version = ENGINES[api.engine_name(spec)], spec.engine.version or defaults.versions[api.engine_name(spec)]
    found, made = spec_problems(spec, catalog, defaults), None
    resolved = resolve(spec, name, namespace, catalog, defaults)
    if isinstance(resolved, Resolved):
        made = Made.of(spec, resolved)
        if readable.places is None and not _touched(_COMMAND_LINE, readable.left_out):
            found += engine.problems(resolved.launch_request(made.speculation))
    else:
        found += resolved
    dialect = engine.dialect(version)
    unknown = engine.unknown_flags(spec.engine.extra_args, version) if isinstance(dialect, ReleaseProfile) else ()
    problems = _first_of_each_field(found)
    taken = {problem.field for problem in problems}
    unknown = [problem for problem in unknown if problem.field not in taken]
    if not refused:
        return Judged(tuple(problems), tuple(unknown), _doubt(spec, dialect), None if problems else made)

    def not_said(candidates: Iterable[Problem]) -> tuple[Problem, ...]:
        return tuple(problem for problem in candidates if not any(_same(problem, refusal, manifest) for refusal in refused))

    def certain(candidates: Iterable[Problem]) -> Iterable[Problem]:
        return (problem for problem in map(readable.written, candidates) if not _depends(problem, readable.left_out))

    return Judged((*not_said(readable.unreadable), *not_said(certain(problems))), not_said(certain(unknown)), _doubt(spec, dialect))


def _doubt(spec: Spec, dialect: ReleaseProfile | Problem) -> str:
    if isinstance(dialect, ReleaseProfile) and not dialect.tested:
        return f"of {dialect.release}, the nearest older release that was tested; look at the release notes"
    return "unless the image of spec.engine.image knows it" if spec.engine.image else ""


def _first_of_each_field(problems: Iterable[Problem]) -> list[Problem]:
    """Returns one problem for each field: later checks say again what earlier ones found."""
    found: dict[str, Problem] = {}
    for problem in problems:
        found.setdefault(problem.field, problem)
    return list(found.values())


# What the API server refuses is left out


def _readable(manifest: Mapping[str, Any]) -> _Readable | None:
    """Returns what can be read of a spec; None if that is too little to say anything."""
    written: Any = copy.deepcopy(manifest.get("spec"))
    left_out: set[str] = set()
    places: tuple[int, ...] | None = None
    unreadable: tuple[Problem, ...] = ()
    for _ in range(_ROUNDS):
        spec = parse_spec({"spec": written})
        if isinstance(spec, Spec):
            return _Readable(spec, frozenset(left_out), places, unreadable)
        unreadable = unreadable or tuple(spec)
        wrong = {int(step[1]) for problem in spec if (step := re.match(re.escape(EXTRA_ARGS) + r"\[(\d+)\]", problem.field))}
        if wrong and places is None:
            tokens = written["engine"]["extraArgs"]
            places = tuple(place for place in range(len(tokens)) if place not in wrong)
            written["engine"]["extraArgs"] = [tokens[place] for place in places]
        for problem in spec:
            if problem.field.startswith(f"{EXTRA_ARGS}["):
                continue
            field = _remove(written, [name or int(place) for name, place in _STEP.findall(problem.field)][1:])
            if field is None:
                return None
            left_out.add(field)
    return None


def _remove(written: Any, path: Sequence[str | int]) -> str | None:
    """Removes a field, or the nearest one around it that is there. Returns its path; None if nothing is left without it."""
    names: list[str] = []
    at = written
    for step in path:
        if not isinstance(step, str) or not isinstance(at, dict) or step not in at:
            break
        names.append(step)
        at = at[step]
    if names in ([], ["target"], ["target", "model"]):
        return None
    inside = written
    for step in names[:-1]:
        inside = inside[step]
    del inside[names[-1]]
    return f"spec.{'.'.join(names)}"


def _depends(problem: Problem, left_out: Iterable[str]) -> bool:
    """Returns whether a problem may be there only because something was left out."""
    part = _part(problem.field)
    return _touched((part, *_DEPENDS.get(part, ())), left_out)


def _part(field: str) -> str:
    """Returns the part of the spec that a field is in: ``spec.engine`` is divided further, as its fields have little in common."""
    steps = re.split(r"[.\[]", field)
    return ".".join(steps[: 3 if steps[1:2] == ["engine"] else 2])


def _touched(parts: Iterable[str], fields: Iterable[str]) -> bool:
    return any(_around(part, field) or _around(field, part) for part in parts for field in fields)


def _around(outer: str, inner: str) -> bool:
    """Returns whether a path is another one or leads to it."""
    return inner == outer or inner.startswith((f"{outer}.", f"{outer}["))


def _same(problem: Problem, refusal: Refusal, manifest: Mapping[str, Any]) -> bool:
    """Returns whether a refusal is about the field of a problem. One about all of extraArgs names the flag that it is about."""
    named = _NAMED.search(refusal.message)
    field = refusal.field or (named[1] if named else "")
    if field == EXTRA_ARGS and problem.field.startswith(f"{EXTRA_ARGS}["):
        token = manifest["spec"]["engine"]["extraArgs"][int(problem.field[len(EXTRA_ARGS) + 1 : -1])]
        return str(token).partition("=")[0] in refusal.message.split()
    return bool(field) and (_around(field, problem.field) or _around(problem.field, field))
