"""The command line, signals, logs, termination message and exit code of ``dflash-fetch``."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from dflash_controller.model.fetch_progress import LIMIT_VARIABLE, FetchProgress
from dflash_controller.model.fetch_report import EXIT_CODES, FetchReason, FetchReport

TERMINATION_LOG = "/dev/termination-log"
DESCRIPTION = "Fetches models from a Hugging Face hub into a directory: resumable, verified, and published at once."
_CODES = ", ".join(f"{code} {reason}" for reason, code in sorted(EXIT_CODES.items(), key=lambda item: item[1]))
EPILOG = f"""The environment: HF_ENDPOINT, HF_TOKEN_PATH or HF_TOKEN, HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE, HF_HUB_OFFLINE=1,
{LIMIT_VARIABLE} (bytes that DIR may hold). Exit codes: {_CODES}"""


def duration(text: str) -> float:
    """Returns a number that is finite and not negative. Raises ValueError."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("dflash-fetch", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    made.add_argument("--model", action="append", default=[], metavar="OWNER/NAME@COMMIT", help="a model to fetch; may be repeated")
    made.add_argument("--into", type=Path, required=True, metavar="DIR", help="models go to DIR/models/OWNER--NAME/COMMIT")
    made.add_argument("--allow", action="append", default=[], metavar="PATTERN", help="only files that match; may be repeated")
    made.add_argument("--ignore", action="append", metavar="PATTERN", help="not these files; default: formats that engines do not load")
    made.add_argument("--deployment", metavar="NAMESPACE/NAME", help="who uses the models: recorded beside them")
    made.add_argument("--prune", action="store_true", help="delete models that --deployment used and nobody uses any more")
    made.add_argument("--keep", action="append", default=[], metavar="OWNER/NAME@COMMIT", help="with --prune: models still in use")
    made.add_argument("--unused-hours", type=duration, default=24, metavar="H", help="with --prune: time since the last use (default: 24)")
    made.add_argument("--parallel", type=int, default=4, metavar="N", help="files fetched at once (default: %(default)s)")
    made.add_argument("--retry-seconds", type=duration, default=600, metavar="S", help="time without a byte after which it gives up")
    made.add_argument(
        "--lease-seconds", type=duration, default=60, metavar="S", help="time after which a silent owner on another node is dead"
    )
    made.add_argument("--progress-seconds", type=duration, default=10, metavar="S", help="time between two log lines of a download")
    made.add_argument("--listen", type=int, metavar="PORT", help="serve the progress as JSON at http://POD:PORT/progress")
    made.add_argument("--log-format", choices=("text", "json"), default="text")
    made.add_argument("--termination-log", type=Path, default=Path(TERMINATION_LOG), metavar="FILE", help="gets one JSON object at the end")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. Wrong arguments exit with 2, as argparse does."""
    # huggingface_hub reads these when it is imported. Its own transfer through Xet is not used here, see hub.
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from dflash_controller.fetch.failures import FetchError
    from dflash_controller.fetch.fetch import Fetch, Settings
    from dflash_controller.fetch.listen import Listener
    from dflash_controller.fetch.progress import Progress
    from dflash_controller.fetch.selection import Patterns, parse_wanted

    made = parser()
    given = made.parse_args(arguments)
    if given.prune and not given.deployment:
        made.error("--prune needs --deployment")
    if not given.model and not given.prune:
        made.error("nothing to do: give --model or --prune")
    try:
        settings = Settings(
            given.into,
            tuple(map(parse_wanted, given.model)),
            Patterns(tuple(given.allow), None if given.ignore is None else tuple(given.ignore)),
            given.deployment,
            tuple(map(parse_wanted, given.keep)) if given.prune else None,
            given.unused_hours * 3600,
            given.parallel,
            given.retry_seconds,
            given.lease_seconds,
            _limit(os.environ.get(LIMIT_VARIABLE, "")),
        )
    except ValueError as error:
        made.error(str(error))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    log = _logger(given.log_format)

    def report_progress(reading: FetchProgress) -> None:
        log(f"{reading.phase}: {reading.sentence()}", **asdict(reading))

    progress = Progress(report_progress, given.progress_seconds)
    if given.listen is not None:
        try:
            Listener(given.listen, lambda: asdict(progress.reading()))
        except OSError as error:
            log(f"The progress is not served on port {given.listen}: {error}")
    begun = time.monotonic()
    try:
        reason, message = FetchReason.FETCHED, Fetch(settings, progress, stopped, log).run()
    except FetchError as error:
        reason, message = error.reason, str(error)
    except Exception as error:
        reason, message = FetchReason.UNEXPECTED, f"{type(error).__name__}: {' '.join(str(error).split())}"
    report = FetchReport(reason, message, progress.downloaded, round(time.monotonic() - begun, 1), round(progress.average()))
    log(message, reason=str(reason))
    _write_termination_log(given.termination_log, report)
    return EXIT_CODES[reason]


def _limit(text: str) -> int | None:
    """Returns a number of bytes; None if the text is empty. Raises ValueError."""
    if text and not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{LIMIT_VARIABLE}: {text!r} is not a number of bytes")
    return int(text) if text else None


def console() -> NoReturn:
    """Runs ``main`` and ends the process at once: threads that still wait for an answer of the hub must not delay the end."""
    code = main()
    sys.stderr.flush()
    os._exit(code)


def _logger(form: str) -> Callable[..., None]:
    def log(message: str, **extra: object) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"timestamp": at, "message": message, **extra}, ensure_ascii=False) if form == "json" else f"{at} {message}"
        print(line, file=sys.stderr, flush=True)

    return log


def _write_termination_log(path: Path, report: FetchReport) -> None:
    """Writes the report where the kubelet reads it. Outside Kubernetes the default file does not exist, and nothing is written."""
    try:
        if str(path) != TERMINATION_LOG or path.exists():
            path.write_text(report.to_json() + "\n")
    except OSError as error:
        print(f"{path} could not be written: {error}", file=sys.stderr)
