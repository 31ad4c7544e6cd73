"""Runs ``dflash-fetch`` in processes that kill themselves right before or right after the n-th step that changes the storage.

``python -m tests.support.killed_at`` reads one JSON object per line: ``when`` (before or after), ``number``, ``log``, ``arguments``. It
answers with the exit status, below 0 for a signal. Steps are counted from the begin of the download on. The file ``log`` gets one line per
step; with ``number`` 0 nothing is killed. A fork of a process that has imported everything takes milliseconds, a start takes a second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_controller.fetch import fetch, program, storage

STEPS = ("rename", "replace", "fsync", "link", "unlink", "mkdir", "rmdir")


def run(when: str, number: int, log: Path, arguments: list[str]) -> int:
    counting = False
    steps = 0

    def step(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **more: Any) -> Any:
            nonlocal steps
            if not counting:
                return call(*given, **more)
            steps += 1
            mine = steps == number
            with log.open("a") as file:
                file.write(f"{name} {given[0]}\n")
            if mine and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*given, **more)
            finally:
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)

        return counted

    fetched: Callable[..., None] = fetch.Download.fetch

    def begins(*given: Any) -> None:
        nonlocal counting
        counting = True
        fetched(*given)

    for name in STEPS:
        setattr(os, name, step(name, getattr(os, name)))
    patched: Any = shutil
    patched.rmtree = step("rmtree", shutil.rmtree)
    patched = storage.Path
    patched.write_text = step("write_text", Path.write_text)
    patched = fetch.Download
    patched.fetch = begins
    return program.main(arguments)


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            code = run(asked["when"], asked["number"], Path(asked["log"]), asked["arguments"])
            sys.stderr.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
