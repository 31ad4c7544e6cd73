"""Makes the directory in which the engines of a namespace keep what they compile: the only part of the storage that they may write.

engine-cache/             nobody but the pods that fetch sees it; engines cannot replace what is in it
engine-cache/NAMESPACE/   mounted by itself into the engines of the namespace

The kubelet makes a missing directory as root with the mode of the volume, and an engine of another user could not write to it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dflash_controller.model.hub import ENGINE_CACHE

ANYBODY = 0o1777
"""As /tmp has: the user of an engine is its image's and not known here. The sticky bit keeps one user from replacing another's files."""
OWNER, VISIBLE = 0o700, 0o755
"""Of the directory above. What root makes is on a node, where other programs run: only the kubelet, which is root, has to pass. On a claim
the kubelet may come as another user (NFS with root squash)."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def prepare(into: Path, user: str, log: Callable[[str], None]) -> None:
    """Makes the directory for the namespace of ``user``, which is NAMESPACE/NAME. What keeps it from being made is logged only.

    Storage that cannot be written may hold the weights, and the directory too.
    """
    namespace, _, name = user.partition("/")
    if not name or not _NAMESPACE.fullmatch(namespace):
        return
    try:
        into.mkdir(parents=True, exist_ok=True)
        shut = OWNER if os.geteuid() == 0 else VISIBLE
        with _directory(into / ENGINE_CACHE, shut) as above, _directory(namespace, ANYBODY, above) as own:
            mode = stat.S_IMODE(os.fstat(own).st_mode)
            if mode & ANYBODY != ANYBODY:  # The umask took a part of it, or the kubelet made it.
                os.fchmod(own, mode | ANYBODY)
    except OSError as error:
        log(
            f"{into / ENGINE_CACHE / namespace} could not be made writable for every user ({error.strerror}) by user {os.getuid()}, group "
            f"{os.getgid()}. If the engine cannot write its caches there, make the directory by hand with mode 1777"
        )


@contextmanager
def _directory(path: Path | str, mode: int, above: int | None = None) -> Iterator[int]:
    """Makes a directory if it is missing, and opens it. A symbolic link is an error: its target would get the mode."""
    with suppress(FileExistsError):
        os.mkdir(path, mode, dir_fd=above)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
