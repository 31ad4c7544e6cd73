"""Reads manifests from files as kubectl does: several documents, lists, directories and standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dflash_controller.api.names import KIND
from dflash_controller.cli.failures import Failure

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNLIKE_GO = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int")
_INTEGER = re.compile(r"^(?:[-+]?0b[01_]+|[-+]?0o?[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file. ``file`` is as it was named, ``-`` for standard input."""

    file: str
    manifest: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.manifest.get("kind"))

    @property
    def name(self) -> str:
        metadata = self.manifest.get("metadata")
        return str(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""

    @property
    def namespace(self) -> str | None:
        metadata = self.manifest.get("metadata")
        namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        return namespace if isinstance(namespace, str) and namespace else None


class _Loader(_BASE):  # type: ignore[misc]
    """YAML as Kubernetes' own parser reads it: a key given twice is an error, and times are text."""


def _mapping(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key, _ in node.value:
        if key.tag != "tag:yaml.org,2002:merge":
            name = loader.construct_object(key, deep=True)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f'key "{name}" is given twice', key.start_mark)
            seen.add(name)
    loader.flatten_mapping(node)
    pairs: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    # JSON knows only text as keys.
    return {str(key).lower() if isinstance(key, bool) else str(key): value for key, value in pairs.items()}


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _UNLIKE_GO]
    for first, resolvers in _BASE.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))


def read(files: Sequence[str]) -> list[Document]:
    """Returns the objects of files, directories and ``-``, in order. Raises Failure for one that cannot be read."""
    return [document for name in files for file in _files(name) for document in _documents(file)]


def deployment(file: str, name: str | None = None) -> Document:
    """Returns the one DFlashDeployment of a file. ``name`` chooses among several. Raises Failure unless there is exactly one."""
    found = [document for document in read([file]) if document.kind == KIND and name in (None, document.name)]
    if not found:
        raise Failure(f"{file} holds no {KIND}{f' called {name}' if name else ''}")
    if len(found) > 1:
        names = ", ".join(document.name for document in found)
        raise Failure(f"{file} holds several: {names}", "Choose one with --name")
    return found[0]


def is_file(text: str) -> bool:
    """Returns whether an argument that may be a file or a name is a file."""
    return text == STDIN or "/" in text or text.endswith(SUFFIXES) or Path(text).is_file()


def _files(name: str) -> list[str]:
    path = Path(name)
    if name == STDIN or not path.is_dir():
        return [name]
    found = sorted(str(file) for file in path.iterdir() if file.suffix in SUFFIXES)
    if not found:
        raise Failure(f"{name} is a directory without {', '.join(SUFFIXES)}")
    return found


def _documents(file: str) -> Iterator[Document]:
    shown = "standard input" if file == STDIN else file
    try:
        text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{shown} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{shown} is not UTF-8 text") from error
    try:
        loaded = list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as error:
        raise Failure(f"{shown} is not YAML: {_where(error)}") from error
    except (RecursionError, ValueError) as error:
        raise Failure(f"{shown} is not YAML: {error}") from error
    for item in loaded:
        if item is None:
            continue
        if not isinstance(item, Mapping):
            raise Failure(f"{shown} holds something that is no Kubernetes object", "Write apiVersion, kind, metadata and spec")
        items = item.get("items") if str(item.get("kind", "")).endswith("List") else None
        for inner in items if isinstance(items, list) else [item]:
            if not isinstance(inner, Mapping):
                raise Failure(f"{shown} holds a list with something that is no Kubernetes object")
            yield Document(file, inner)


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())
