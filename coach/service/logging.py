"""Log lines of the service, on stderr: for people, or one JSON object each."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from enum import StrEnum

from coach.report.formatting import iso


class LogFormat(StrEnum):
    """The format of a log line."""

    TEXT = "text"
    JSON = "json"


class JsonFormatter(logging.Formatter):
    """`{"time": ..., "level": ..., "logger": ..., "message": ..., "job": ..., "epoch": ...}`; `error` has a traceback.

    `epoch`: how many of the job's epochs count so far.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, without line breaks inside."""
        entry = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        job = getattr(record, "job", "")
        if job:
            entry["job"] = job
            if (epoch := getattr(record, "epoch", None)) is not None:
                entry["epoch"] = epoch
        if record.exc_info and record.exc_info[0]:
            entry["error"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`12:03:04 INFO job: message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(prefix)s%(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Adds the job's name, if there is one."""
        job = getattr(record, "job", "")
        record.prefix = f"{job}: " if job else ""
        return super().format(record)


def begin_logging(chosen: LogFormat) -> logging.Handler:
    """Write all logs of this process to stderr; returns the log handler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if chosen is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # These log every request that Coach itself makes: two a second for each function.
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return handler
