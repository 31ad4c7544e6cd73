"""Operators as forks of one process that has already imported the operator, because imports are half of the start-up time.

A fork is a separate process with its own session, environment and log; SIGKILL ends it like any other. The demo, the benchmarks and the
tests of outages cover what only a real start does (the command line, the imports).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent


class OperatorForks:
    """The process that forks. ``marker`` is text in its command line, and so in those of its forks, that identifies them."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._asking = threading.Lock()

    def __enter__(self) -> OperatorForks:
        command = [sys.executable, "-X", f"cluster={self._marker}", "-m", "testbed.operator_forks"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate()

    def start(self, log: Path, environment: Mapping[str, str]) -> int:
        """Starts an operator with only this environment. Returns its pid. Its output is appended to ``log``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps({"log": str(log), "environment": dict(environment)}) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


def _fork(main: Any, log: str, environment: Mapping[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
            os.dup2(os.open(path, flags, 0o644), number)
        os.dup2(1, 2)
        os.environ.clear()
        os.environ.update(environment)
        main()
    except SystemExit as end:
        print(end.code, file=sys.stderr, flush=True)
    finally:
        os._exit(1)


def _serve() -> None:
    found = importlib.util.spec_from_file_location("operator_main", ROOT / "operator" / "main.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no exit status of a fork is read, so none becomes a zombie
    for line in sys.stdin:
        print(_fork(module.main, **json.loads(line)), flush=True)


if __name__ == "__main__":
    _serve()
