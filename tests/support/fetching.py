"""Runs ``python -m dflash_controller.fetch`` as a process, as a container does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0
"""Only a fault takes so long. These processes give way to the tests on clusters, which may take all cores for minutes."""


def start(into: Path, *arguments: str, endpoint: str, **environment: str) -> subprocess.Popen[str]:
    """Starts the program. Its termination message goes to a file beside ``into``."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HTTP", "http"))}
    env |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HOME": str(into.parent / "home"), "no_proxy": "127.0.0.1"} | environment
    command = [sys.executable, "-m", "dflash_controller.fetch", "--into", str(into), "--termination-log", str(message_file(into))]
    return subprocess.Popen([*command, *arguments], env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def message_file(into: Path) -> Path:
    return into.parent / f"{into.name}-termination-log"


def run(into: Path, *arguments: str, endpoint: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    """Returns the exit code, the termination message and the log."""
    process = start(into, *arguments, endpoint=endpoint, **environment)
    _, log = process.communicate(timeout=PATIENCE_S)
    found = message_file(into)
    return process.returncode, json.loads(found.read_text()) if found.exists() else {}, log
