"""Brings one model into its staging directory: parts are continued, contents are verified, and only verified files get their names."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from dflash_controller.fetch.failures import FetchError
from dflash_controller.fetch.hub import Hub, TransientError
from dflash_controller.fetch.progress import Progress
from dflash_controller.fetch.selection import File, Wanted
from dflash_controller.fetch.storage import Place, is_fetched, part_of, storage_errors, sync
from dflash_controller.fetch.threads import STOPPED, run_all
from dflash_controller.model.fetch_report import FetchReason

CHUNK = 256 * 1024
"""Bytes that are read from the disk at once."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


Returned = TypeVar("Returned")


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def digest_of(file: File) -> Digest:
    """Returns an empty digest of the file's kind. git hashes a header with the size before the content of a blob."""
    if file.sha256 is not None:
        return hashlib.sha256()
    found = hashlib.sha1(usedforsecurity=False)
    found.update(f"blob {file.size}\0".encode())
    return found


@dataclass(slots=True)
class Patience:
    """Retries while bytes arrive: it gives up after ``limit_s`` seconds in which none did. Shared by the threads of a fetch."""

    limit_s: float
    stopped: threading.Event
    endpoint: str
    clock: Callable[[], float] = time.monotonic
    arrived_at: float | None = None

    def arrived(self) -> None:
        self.arrived_at = self.clock()

    def call(self, what: str, log: Callable[[str], None], action: Callable[[], Returned]) -> Returned:
        """Returns what the action returns. Raises FetchError when it keeps failing."""
        begun, pause = self.clock(), FIRST_PAUSE_S
        while True:
            before = self.arrived_at
            try:
                return action()
            except TransientError as error:
                if self.arrived_at != before:
                    pause = FIRST_PAUSE_S
                since = self.clock() - max(begun, self.arrived_at or begun)
                if since >= self.limit_s:
                    raise FetchError(
                        FetchReason.HUB_UNREACHABLE,
                        f"{self.endpoint} could not be reached for {since:.0f} s while fetching {what}: {error}. Check the network, "
                        "HTTPS_PROXY and HF_ENDPOINT (spec.engine.env), or put the weights into the storage beforehand",
                    ) from error
                delay = min(max(pause, error.retry_after or 0), max(self.limit_s - since, 0.1))
                log(f"{what}: {error}. Retries in {delay:.0f} s")
                if self.stopped.wait(delay):
                    raise FetchError(FetchReason.INTERRUPTED, STOPPED) from error
                pause = min(pause * 2, LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Download:
    """What the threads of a fetch share. ``check`` raises FetchError if this process may no longer write."""

    hub: Hub
    progress: Progress
    patience: Patience
    stopped: threading.Event
    check: Callable[[], None]
    log: Callable[[str], None]

    def fetch(self, place: Place, files: Sequence[File], parallel: int) -> None:
        """Puts every file into ``place.files``. Ends all threads at the first error and raises it."""
        place.parts.mkdir(parents=True, exist_ok=True)
        place.files.mkdir(parents=True, exist_ok=True)
        todo: dict[str, list[File]] = {}
        for file in files:
            if not is_fetched(place, file):
                todo.setdefault(file.digest, []).append(file)
        largest_first = sorted(todo.values(), key=lambda group: -group[0].size)
        run_all([partial(self._group, place, group) for group in largest_first], parallel, self.stopped)

    def _group(self, place: Place, group: Sequence[File]) -> None:
        """Fetches one content, and gives it all its names: a repository may hold a file twice."""
        first, *others = group
        part = part_of(place, first)
        with storage_errors(place.into):
            self._complete(place.wanted, first, part, place.hub_cache / first.digest)
            self.may_write()
            sync(part)
            for other in others:
                _link(part, place.files / other.path)
            target = place.files / first.path
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)

    def _complete(self, wanted: Wanted, file: File, part: Path, cached: Path) -> None:
        """Makes the part whole and verified. A continued part with the wrong hash is fetched once more from the start."""
        had = min(part.stat().st_size, file.size) if part.exists() else 0
        if not had and self._verified_copy(file, cached):
            _link(cached, part)
            self.progress.moved(file.size)
            return
        for begun in (had, 0) if had else (0,):
            if not begun:
                part.unlink(missing_ok=True)
            with part.open("r+b" if begun else "w+b") as stream:
                content = _Content(self, wanted, file, stream)
                content.read_back(begun)
                while content.offset < file.size:
                    self.patience.call(f"{wanted.model}/{file.path}", self.log, content.receive)
            if content.digest.hexdigest() == file.digest:
                return
            self.progress.moved(-file.size)
            if begun:
                self.log(f"{wanted.model}/{file.path}: the part on disk was damaged; fetches it again")
        part.unlink()
        raise FetchError(
            FetchReason.HASH_MISMATCH,
            f"{file.path} of {wanted} from {self.hub.endpoint} has the hash {content.digest.hexdigest()} instead of {file.digest}: "
            "a proxy or mirror changed it, or the storage is faulty. It was deleted. Set HF_ENDPOINT to another hub, or check "
            "the proxy and the disk",
        )

    def _verified_copy(self, file: File, cached: Path) -> bool:
        """Returns whether the hub's cache on the same storage holds the content."""
        try:
            if not cached.is_file() or cached.stat().st_size != file.size:
                return False
            digest = digest_of(file)
            with cached.open("rb") as stream:
                for chunk in iter(lambda: stream.read(CHUNK), b""):
                    digest.update(chunk)
                    self.may_write()
            return digest.hexdigest() == file.digest
        except PermissionError:
            return False

    def may_write(self) -> None:
        """Raises FetchError if the program was told to stop or has lost the lock."""
        if self.stopped.is_set():
            raise FetchError(FetchReason.INTERRUPTED, STOPPED)
        self.check()


@dataclass(slots=True)
class _Content:
    """The content of one file on its way to the disk, hashed as it is written."""

    download: Download
    wanted: Wanted
    file: File
    stream: BinaryIO
    offset: int = 0
    furthest: int = 0
    """The largest offset that was reached: only bytes beyond it are progress. A server may begin at 0 again for ever."""
    digest: Digest = field(init=False)

    def __post_init__(self) -> None:
        self.digest = digest_of(self.file)

    def read_back(self, size: int) -> None:
        """Hashes what an earlier process has written."""
        while self.offset < size:
            chunk = self.stream.read(min(CHUNK, size - self.offset))
            self.download.may_write()
            self.digest.update(chunk)
            self.offset += len(chunk)

    def receive(self) -> None:
        """Makes one request from the offset on. Raises TransientError if the answer ends early; what arrived is kept."""
        with self.download.hub.content(self.wanted, self.file, self.offset) as (begins, ends, chunks):
            if begins != self.offset:
                self.download.progress.moved(-self.offset)
                self.digest, self.offset = digest_of(self.file), 0
            self.stream.seek(self.offset)
            self.stream.truncate()
            for chunk in chunks:
                self._take(chunk[: ends - self.offset])
                if self.offset == ends:
                    return
        raise TransientError(f"the answer ended after {self.offset - begins} of {ends - begins} bytes")

    def _take(self, chunk: bytes) -> None:
        self.download.may_write()
        self.stream.write(chunk)
        self.digest.update(chunk)
        self.offset += len(chunk)
        self.download.progress.received(len(chunk))
        if self.offset > self.furthest:
            self.furthest = self.offset
            self.download.patience.arrived()


def _link(source: Path, target: Path) -> None:
    """Gives a content another name; copies it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        partial = target.with_name(target.name + ".copy")
        with source.open("rb") as read, partial.open("wb") as write:
            while chunk := read.read(CHUNK):
                write.write(chunk)
        sync(partial)
        partial.replace(target)
