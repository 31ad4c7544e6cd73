"""What both drivers share: verdicts from lines of arguments, and the option table of an argparse parser.

A hole in the environment (an import that fails) is re-raised: it must never pass for a verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TextIO

PROBES = ("1", "1.5", "x", "{}", '{"a":1}', "[1]", "2k", "None", "true", "")


def judge(out: TextIO, resolve: Callable[[list[str]], dict[str, Any]], hole: Callable[[BaseException], bool]) -> None:
    """One JSON verdict on ``out`` for each line ``{"args": […], "env": {…}}`` on stdin."""
    environ = dict(os.environ)
    for line in sys.stdin:
        case = json.loads(line)
        # resolution writes environment variables, which would decide the next case
        os.environ.clear()
        os.environ.update(environ | case["env"])
        errors = io.StringIO()
        verdict: dict[str, Any]
        try:
            with contextlib.redirect_stderr(errors):
                verdict = {"accepted": True, "resolved": resolve(case["args"])}
        except BaseException as error:
            if isinstance(error, (ImportError, AttributeError, NameError, KeyboardInterrupt)) or hole(error):
                raise
            last = (errors.getvalue().strip().splitlines() or [""])[-1]
            verdict = {"accepted": False, "error": last if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"}
            verdict["status"] = error.code if isinstance(error, SystemExit) else 1
        print(json.dumps(verdict), file=out, flush=True)


def table(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every option of the parser: names, destination, arity, kind of value, choices, default. Positionals have no names."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, action in parser._option_string_actions.items():  # holds names that an action hides from help, too
        names[id(action)].append(name)
    return [_option(action, names[id(action)]) for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def _option(action: argparse.Action, names: list[str]) -> dict[str, Any]:
    option: dict[str, Any] = {"names": names, "dest": action.dest}
    if action.nargs is not None:
        option["nargs"] = action.nargs
    if action.const is not None:
        option["const"] = _plain(action.const)
    if isinstance(action.default, (bool, int, float, str)) and action.default is not argparse.SUPPRESS:
        option["default"] = action.default
    if action.choices is not None:
        choices = sorted(action.choices) if isinstance(action.choices, (set, frozenset)) else action.choices
        option["choices"] = [_plain(choice) for choice in choices]
    if action.required and action.option_strings:
        option["required"] = True
    if isinstance(action, argparse.BooleanOptionalAction):
        option["action"] = "boolean"
        option["off"] = [name for name in names if _sets(action, name) is False]
    elif message := getattr(action, "error_message", None):  # a retired flag that stops the launch
        option["error"] = message
    elif isinstance(action, argparse._VersionAction):
        option["action"] = "version"
    elif isinstance(action, (argparse._AppendAction, argparse._ExtendAction)):
        option["action"] = "append"
    elif action.nargs != 0:
        option["kind"] = _kind(action.type)
        if keys := _object_keys(action.type):
            option["keys"] = keys
    return option


def _sets(action: argparse.Action, name: str) -> Any:
    """What the switch stores when it is given by this name."""
    namespace = argparse.Namespace()
    action(argparse.ArgumentParser(), namespace, [], name)
    return getattr(namespace, action.dest)


def _kind(convert: Any) -> str:
    """What strings the converter takes, found by trying: the engines' converters are closures without names."""
    if convert is None or convert is str:
        return "text"
    taken = {probe for probe in PROBES if _takes(convert, probe)}
    json_texts = {"1", "1.5", "{}", '{"a":1}', "[1]", "true"}
    none = {"None", ""}
    kinds = {
        "text": set(PROBES),
        "integer": {"1"},
        "number": {"1", "1.5"},
        "size": {"1", "2k"},
        "json": json_texts,
        "object": {"{}"},
    }
    kinds |= {f"optional-{kind}": texts | none for kind, texts in kinds.items()}
    for kind, texts in kinds.items():
        if taken == texts:
            return kind
    if taken <= none and _object_keys(convert):  # an object with required keys
        return "optional-object" if taken else "object"
    raise NotImplementedError(f"{convert} takes {sorted(taken)}")


def _object_keys(convert: Any) -> list[str]:
    """Keys of the dataclass that vLLM's converter builds from a JSON object: a default argument of it or of the one it wraps."""
    for value in getattr(convert, "__defaults__", None) or ():
        if dataclasses.is_dataclass(value):
            return sorted(field.name for field in dataclasses.fields(value) if field.init)
    wrapped = [cell.cell_contents for cell in getattr(convert, "__closure__", None) or ()]
    return next((keys for inner in wrapped if callable(inner) and (keys := _object_keys(inner))), [])


def _takes(convert: Any, text: str) -> bool:
    try:
        convert(text)
    except (ValueError, TypeError, AttributeError, argparse.ArgumentTypeError):
        return False
    return True


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
