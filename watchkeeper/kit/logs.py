"""Logging: a fixed sentence plus fields, as text for people or JSON for machines.

`log.info("Scrape failed", extra=fields(node=name, error=str(error)))`. The level says who must act:
error a person now, warning a person later, info a change of state, debug the rest.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def fields(**named: Any) -> dict[str, Any]:
    """Fields of one log record, as `extra=` wants them."""
    return {"fields": named}


class TextFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {record.getMessage()}"
        named: dict[str, Any] = getattr(record, "fields", {})
        line += "".join(f" {name}={value}" for name, value in named.items())
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(*, level: str = "info", as_json: bool = False) -> None:
    """Send our logs to standard error; the loggers of libraries speak from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormat() if as_json else TextFormat())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("watchkeeper").setLevel(level.upper())
