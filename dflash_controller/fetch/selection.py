"""Says which model at which commit is wanted, and which of its files. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from dflash_controller.model.hub import directory_of, is_commit

MANIFEST = ".dflash.json"
"""What a published directory says of itself. A file of this name in a repository, whose content was published from here, is not fetched."""
MODEL = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
IGNORED = ("original/*", "metal/*", ".gitattributes")
"""Second copies of the weights in another format (Meta's, OpenAI's for Apple). vLLM skips ``original/**/*`` as well."""
IGNORED_BESIDE_SAFETENSORS = ("pytorch_model*.bin", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf", "*.onnx", "onnx/*", "openvino/*")
"""Further formats of weights that exist as safetensors, which SGLang and vLLM then load."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model at a commit."""

    model: str
    commit: str

    def __str__(self) -> str:
        return f"{self.model}@{self.commit}"

    @property
    def directory(self) -> str:
        """The directory of the model, below which each commit has one."""
        return directory_of(self.model)


def parse_wanted(text: str) -> Wanted:
    """Reads ``OWNER/NAME@COMMIT``. Raises ValueError, because a branch would give two pods different weights."""
    model, _, commit = text.partition("@")
    if not MODEL.fullmatch(model) or "--" in model or ".." in model:
        raise ValueError(f"{text!r} names no model as OWNER/NAME@COMMIT")
    if not is_commit(commit):
        raise ValueError(f"{text!r} needs a full commit (40 hexadecimal digits) after '@', not a branch or tag")
    return Wanted(model, commit)


@dataclass(frozen=True, slots=True)
class File:
    """A file of a model: path, size in bytes, and the hash of its content.

    ``sha256`` is that of a large file (LFS), ``blob`` git's SHA-1 of a small one; the other is None.
    """

    path: str
    size: int
    sha256: str | None = None
    blob: str | None = None

    @property
    def digest(self) -> str:
        """Names the content. It is also the ETag of the hub and the name of the file in a hub cache."""
        return self.sha256 or self.blob or ""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Shell patterns over paths; ``*`` matches ``/`` too, as in huggingface_hub. ``ignore`` None: what engines do not load."""

    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] | None = None

    def select(self, files: Sequence[File]) -> list[File]:
        """Returns the files to fetch, in the order of their paths."""
        own = [file for file in files if PurePosixPath(file.path).parts[0] != MANIFEST]
        allowed = [file for file in own if not self.allow or _matches(file.path, self.allow)]
        ignored = self.ignore
        if ignored is None:
            safetensors = any(PurePosixPath(file.path).suffix == ".safetensors" and "/" not in file.path for file in allowed)
            ignored = IGNORED + (IGNORED_BESIDE_SAFETENSORS if safetensors else ())
        return sorted((file for file in allowed if not _matches(file.path, ignored)), key=lambda file: file.path)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern + "*" if pattern.endswith("/") else pattern) for pattern in patterns)


def is_digest(text: object) -> bool:
    """Returns whether this is a SHA-1 or SHA-256 in hexadecimal digits. Contents on their way are stored under that name."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def is_safe(path: str) -> bool:
    """Returns whether a path given by a hub stays below the model's directory."""
    parts = path.split("/")
    return not path.startswith("/") and "\\" not in path and "\0" not in path and not any(part in ("", ".", "..") for part in parts)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a published directory holds. It is written by us alone, so a directory without one was made by somebody else."""

    model: str
    commit: str
    files: tuple[File, ...]
    patterns: Patterns

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def parse_manifest(text: str) -> Manifest | None:
    """Returns the manifest; None if the text is none, for example cut short."""
    try:
        found: dict[str, Any] = json.loads(text)
        files = tuple(File(**file) for file in found["files"])
        chosen = found["patterns"]
        patterns = Patterns(tuple(chosen["allow"]), None if chosen["ignore"] is None else tuple(chosen["ignore"]))
        return Manifest(str(found["model"]), str(found["commit"]), files, patterns)
    except (ValueError, KeyError, TypeError):
        return None
