"""Log messages: a fixed text plus fields, as text for people or JSON for machines.

`log.info("scrape failed", extra=fields(node=name, error=str(error)))`. The level says who must act: error a person now,
warning a person later, info a change of state, debug the rest.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def fields(**values: Any) -> dict[str, Any]:
    """The fields of one log record, for its `extra` argument."""
    return {"fields": values}


class TextFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {record.getMessage()}"
        values: dict[str, Any] = getattr(record, "fields", {})
        line += "".join(f" {name}={value}" for name, value in values.items())
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {"at": record.created, "level": record.levelname.lower(), "logger": record.name}
        entry |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(*, level: str = "info", as_json: bool = False) -> None:
    """Log to standard error; loggers of libraries log warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormat() if as_json else TextFormat())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("watchkeeper").setLevel(level.upper())
