"""The layout of the storage, what is there already, free space, and atomic publishing.

models/OWNER--NAME/COMMIT/            the published model: plain files and .dflash.json, its manifest
models/OWNER--NAME/.COMMIT.partial/   being fetched: files/ (hash checked), parts/ (named by their hash)
models/OWNER--NAME/.COMMIT.lock       see lock
models/OWNER--NAME/.COMMIT.users/     see users
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_controller.fetch.failures import FetchError
from dflash_controller.fetch.selection import MANIFEST, File, Manifest, Patterns, Wanted, parse_manifest
from dflash_controller.model.fetch_progress import in_units
from dflash_controller.model.fetch_report import FetchReason

INDEX = "model.safetensors.index.json"
RESERVE = 64 * 1024 * 1024
"""Bytes that stay free: a file system needs some for its own records."""


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of one model at one commit below the storage directory ``into``."""

    into: Path
    wanted: Wanted

    @property
    def parent(self) -> Path:
        return self.into / "models" / self.wanted.directory

    @property
    def final(self) -> Path:
        return self.parent / self.wanted.commit

    @property
    def partial(self) -> Path:
        return self.parent / f".{self.wanted.commit}.partial"

    @property
    def files(self) -> Path:
        return self.partial / "files"

    @property
    def parts(self) -> Path:
        return self.partial / "parts"

    @property
    def lock(self) -> Path:
        return self.parent / f".{self.wanted.commit}.lock"

    @property
    def users(self) -> Path:
        return self.parent / f".{self.wanted.commit}.users"

    @property
    def trash(self) -> Path:
        return self.parent / f".{self.wanted.commit}.trash"

    @property
    def hub_cache(self) -> Path:
        """Where the engines of earlier releases kept the same files: the hub's own cache on the same storage, by content."""
        return self.into / "huggingface" / "hub" / f"models--{self.wanted.directory}" / "blobs"


@contextmanager
def storage_errors(into: Path) -> Iterator[None]:
    """Turns errors of the file system that a human has to fix into FetchError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(
                FetchReason.NO_SPACE,
                f"The storage {into} is full ({error.strerror}) though enough was free at the start: something else fills it. "
                "Enlarge it or delete what is not needed; the download continues where it ended",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise FetchError(
                FetchReason.STORAGE_NOT_WRITABLE,
                f"The storage {into} cannot be written ({error.strerror}: {error.filename}) by user {os.getuid()}, group {os.getgid()}. "
                "Mount it writable and give that user or group the directory, or fetch the weights beforehand",
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP):
            raise FetchError(
                FetchReason.STORAGE_NOT_WRITABLE,
                f"{error.filename2 or error.filename} in the storage {into} is in the way ({error.strerror}): a file or link is "
                "where a directory belongs, or the other way round. Remove it",
            ) from error
        raise


def manifest_of(place: Place) -> Manifest | None:
    """Returns the manifest of a published directory that we made; None if there is none."""
    try:
        return parse_manifest((place.final / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_present(place: Place, patterns: Patterns) -> bool:
    """Returns whether the model is published and whole: every file of its manifest has its size.

    A directory that somebody else made counts as whole if nothing that its own files name is missing. Raises FetchError if something is:
    it may be in the middle of being copied, so it is not touched.
    """
    if not place.final.is_dir():
        return False
    if manifest := manifest_of(place):
        return manifest.patterns == patterns and not damaged(place, manifest)
    if (place.final / MANIFEST).exists():
        return False
    if missing := _missing_from_foreign(place.final):
        raise FetchError(
            FetchReason.INCOMPLETE_MODEL,
            f"{place.final} was not made by dflash-fetch and lacks {missing}. Complete it, or remove it to have it fetched",
        )
    return True


def damaged(place: Place, manifest: Manifest) -> list[str]:
    """Returns the paths of files that are gone or have another size."""
    return [file.path for file in manifest.files if _size(place.final / file.path) != file.size]


def _missing_from_foreign(directory: Path) -> str | None:
    if not (directory / "config.json").is_file():
        return "config.json"
    try:
        shards = set(json.loads((directory / INDEX).read_text())["weight_map"].values())
    except FileNotFoundError:
        weights = [path for path in directory.iterdir() if path.suffix in (".safetensors", ".bin", ".pt", ".gguf")]
        return None if weights else "weights (*.safetensors)"
    except (ValueError, KeyError, AttributeError):
        return f"a readable {INDEX}"
    return next((str(shard) for shard in sorted(shards) if not (directory / str(shard)).is_file()), None)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def part_of(place: Place, file: File) -> Path:
    return place.parts / file.digest


def is_fetched(place: Place, file: File) -> bool:
    """Returns whether the file is in the staging directory (only files with the right hash are put there) or published with its size."""
    if _size(place.files / file.path) == file.size:
        return True
    manifest = manifest_of(place)
    return manifest is not None and file in manifest.files and _size(place.final / file.path) == file.size


def missing_bytes(place: Place, files: Sequence[File]) -> int:
    """Returns the bytes still to be written for the files: whole files, less parts on disk and
    what the hub's cache on the same storage holds. Equal contents count once."""
    missing = {file.digest or file.path: file for file in files if not is_fetched(place, file)}
    missing = {digest: file for digest, file in missing.items() if _size(place.hub_cache / digest) != file.size}
    return sum(max(file.size - (_size(part_of(place, file)) or 0), 0) for file in missing.values())


def check_space(into: Path, missing: int, limit: int | None = None) -> None:
    """Raises FetchError if fewer bytes are free than are missing. For users other than root, as the engines are.

    ``limit`` are the bytes that the whole directory may hold, of which its file system knows nothing; None: any number.
    """
    if not missing:
        return
    used = 0 if limit is None else used_bytes(into)
    if limit is not None and used + missing + RESERVE > limit:
        raise FetchError(
            FetchReason.NO_SPACE,
            f"The weights need {missing} bytes ({in_units(missing)}) more and {RESERVE} to spare, but {into} may hold {limit} bytes "
            f"({in_units(limit)}) and holds {used}. A pod with more would be evicted. Raise spec.storage.emptyDir.sizeLimit, or "
            "ephemeral-storage in spec.podTemplate.resources.limits",
        )
    found = os.statvfs(into)
    free = found.f_bavail * found.f_frsize
    if missing + RESERVE > free:
        raise FetchError(
            FetchReason.NO_SPACE,
            f"The weights need {missing} bytes ({in_units(missing)}) more and {RESERVE} to spare, but {into} has {free} bytes "
            f"({in_units(free)}) free. Enlarge the storage (spec.storage) or delete what is not needed there",
        )


def used_bytes(directory: Path) -> int:
    """Returns the bytes on disk of all files below a directory, each once, as the kubelet counts them."""
    found: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                status = os.lstat(os.path.join(parent, name))
                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def sync(path: Path) -> None:
    """Makes a file's content, or a directory's entries, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and overlay file systems cannot sync a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def publish(place: Place, manifest: Manifest) -> None:
    """Makes the staged files the published directory: by one rename, so that nobody sees a part of it.

    Where a published directory was damaged or chosen with other patterns, the staged files are put into it, the manifest last.
    """
    place.files.mkdir(parents=True, exist_ok=True)
    staged = place.files / MANIFEST
    staged.write_text(manifest.to_json())
    sync(staged)
    for directory, _, _ in os.walk(place.files, topdown=False):
        sync(Path(directory))
    if place.final.is_dir():
        for file in manifest.files:
            if (source := place.files / file.path).exists():
                (place.final / file.path).parent.mkdir(parents=True, exist_ok=True)
                source.replace(place.final / file.path)
        staged.replace(place.final / MANIFEST)
    else:
        place.files.rename(place.final)
    sync(place.parent)
    remove(place.partial)


def remove(directory: Path) -> None:
    """Deletes a directory if it is there."""
    if directory.exists():
        shutil.rmtree(directory)
