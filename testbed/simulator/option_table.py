"""An argparse parser rebuilt from an option table of a real engine's parser.

Prefix abbreviations stay on, as in both engines. Errors raise ArgvError where argparse would exit.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NoReturn

from dflash_controller.engines.flags import integer


class ArgvError(Exception):
    """The engine refuses its command line. Holds its stderr text and exit status."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        super().__init__(stderr.strip())
        self.exit_code = exit_code
        self.stderr = stderr


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgvError(2, f"usage: {self.prog} [-h] ...\n{self.prog}: error: {message}\n")


class _Switch(argparse.Action):
    """One destination with names that turn it on and names that turn it off."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, off: Sequence[str], default: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=default)
        self.off = frozenset(off)

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string not in self.off)


class _Retired(argparse.Action):
    """A name that is still known but stops the launch."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, nargs: Any, message: str) -> None:
        super().__init__(option_strings, dest, nargs=nargs)
        self.message = message

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        parser.error(self.message)


def table_names() -> tuple[str, ...]:
    """Returns ``engine-release`` of every table."""
    return tuple(sorted(path.name.removesuffix(".json") for path in _folder().iterdir() if path.name.endswith(".json")))


@functools.cache
def facts(name: str) -> Mapping[str, Any]:
    """Returns the whole table of one release. Raises FileNotFoundError for a release without one."""
    loaded: dict[str, Any] = json.loads(_folder().joinpath(f"{name}.json").read_text())
    return loaded


@functools.cache
def parser(name: str) -> argparse.ArgumentParser:
    """Returns the parser of one release."""
    table = facts(name)
    result = _Parser(prog=table["prog"])
    for option in table["options"]:
        if option.get("action") != "version":
            _add(result, option)
    return result


def _folder() -> Any:
    return resources.files("testbed.simulator").joinpath("flags")


def _add(target: argparse.ArgumentParser, option: Mapping[str, Any]) -> None:
    names: Sequence[str] = option["names"]
    settings: dict[str, Any] = {"default": option.get("default")}
    if names:
        settings["dest"] = option["dest"]
    if option.get("required"):
        settings["required"] = True
    action, nargs = option.get("action"), option.get("nargs")
    if "error" in option:
        target.add_argument(*names, action=_Retired, nargs=nargs, dest=option["dest"], message=option["error"])
    elif action == "boolean":
        target.add_argument(*names, action=_Switch, off=option["off"], **settings)
    elif nargs == 0:
        target.add_argument(*names, action="store_const", const=option.get("const", True), **settings)
    else:
        settings |= {key: option[key] for key in ("nargs", "const", "choices") if key in option}
        settings["type"] = _converter(option.get("kind", "text"), tuple(option.get("keys", ())))
        if action == "append":
            settings["action"] = "append"
        target.add_argument(*(names or (option["dest"],)), **settings)


def _converter(kind: str, keys: tuple[str, ...]) -> Callable[[str], Any]:
    base: Callable[[str], Any]
    match kind.removeprefix("optional-"):
        case "text":
            base = str
        case "integer":
            base = int
        case "number":
            base = float
        case "size":
            base = _size
        case "json":
            base = json.loads
        case "object":
            base = functools.partial(_object, keys)
        case other:
            raise NotImplementedError(f"kind of value {other!r}")
    return functools.partial(_optional, base) if kind.startswith("optional-") else base


def _optional(convert: Callable[[str], Any], text: str) -> Any:
    return None if text in ("", "None") else convert(text)


def _size(text: str) -> int | str:
    if text == "auto":
        return text
    number = integer(text)
    if number is None:
        raise ValueError(text)
    return number


def _object(keys: tuple[str, ...], text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    if keys and (unknown := sorted(set(value) - set(keys))):
        raise argparse.ArgumentTypeError(f"unexpected keys {', '.join(unknown)}")
    return value
