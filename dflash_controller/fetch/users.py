"""Records which deployments use a model, and deletes what none uses any more.

Storage may be shared, so a deployment deletes nothing that another one has recorded. The record is a small file per deployment beside the
model. A model without our manifest (put there by a human), without any record, or locked by a running fetch is never deleted.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Collection
from pathlib import Path

from dflash_controller.fetch.lock import Lock
from dflash_controller.fetch.selection import Wanted, parse_wanted
from dflash_controller.fetch.storage import Place, manifest_of, remove


def record(place: Place, user: str) -> None:
    """Notes that a deployment uses the model. To be called with the model's lock held, so that nobody deletes it meanwhile."""
    place.users.mkdir(parents=True, exist_ok=True)
    (place.users / _file_name(user)).touch()


def prune(
    into: Path, user: str, keep: Collection[Wanted], unused_s: float, lock: Callable[[Place], Lock], log: Callable[[str], None]
) -> list[Wanted]:
    """Takes the user's name off all models but ``keep``, and deletes those that have no other user. Returns what was deleted.

    A model whose use was recorded less than ``unused_s`` seconds ago stays: the caller's list may be older than a pod that begins.
    """
    deleted = []
    now = _now(into)
    for users in sorted((into / "models").glob(f"*--*/.*.users/{_file_name(user)}")):
        wanted = _wanted(users.parent)
        if wanted is None or wanted in keep or now - users.stat().st_mtime < unused_s:
            continue
        place = Place(into, wanted)
        held = lock(place)
        if not held.acquire():
            log(f"{wanted} is being fetched, so it is not deleted")
            continue
        try:
            users.unlink(missing_ok=True)
            if any(place.users.iterdir()):
                log(f"{wanted} is kept: another deployment uses it")
                continue
            if place.final.exists() and manifest_of(place) is None:
                log(f"{wanted} is kept: it was not made by dflash-fetch")
                continue
            # A rename first: nobody finds a model of which a part is deleted already.
            remove(place.trash)
            if place.final.exists():
                place.final.rename(place.trash)
            for directory in (place.trash, place.partial, place.users):
                shutil.rmtree(directory, ignore_errors=True)
            deleted.append(wanted)
            log(f"{wanted} is deleted: no deployment uses it any more")
        finally:
            held.release()
    return deleted


def _now(into: Path) -> float:
    """Returns the time of the clock that stamps the records, which may be a file server's."""
    probe = into / "models" / f".now-{socket.gethostname()}-{os.getpid()}"
    probe.parent.mkdir(parents=True, exist_ok=True)
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _file_name(user: str) -> str:
    return user.replace("/", ".")


def _wanted(users: Path) -> Wanted | None:
    try:
        return parse_wanted(f"{users.parent.name.replace('--', '/', 1)}@{users.name.removeprefix('.').removesuffix('.users')}")
    except ValueError:
        return None
