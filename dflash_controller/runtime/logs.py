"""Formats log lines: one JSON object per line for machines, or plain text for people."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, Literal

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUIET = ("aiohttp.access", "kopf.activities", "kopf.objects")


class JsonFormatter(logging.Formatter):
    """Writes ``timestamp``, ``severity``, ``logger``, ``message``, the ``extra=`` fields of the call, and ``exception`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "severity": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure_logging(log_format: Literal["json", "text"], level: str) -> None:
    """Sends all logs to standard error, except kopf's lines per object, which describe handlers that only fill a queue."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # kopf logs this because it runs on a thread; the operator itself handles the signals.
    logging.getLogger("kopf._core.reactor.running").addFilter(lambda record: "OS signals are ignored" not in record.getMessage())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
