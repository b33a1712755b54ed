"""Log messages: a fixed text and its fields."""

from __future__ import annotations

import json
import logging

from watchkeeper.kit import logs


def record(**named: object) -> logging.LogRecord:
    made = logging.LogRecord(
        "watchkeeper.collect", logging.WARNING, "scrape.py", 1, "Scrape failed", None, exc_info=None
    )
    made.__dict__ |= logs.fields(**named)
    return made


def test_a_line_for_people_has_the_sentence_first_and_then_the_fields() -> None:
    line = logs.TextFormat().format(record(node="n1", error="refused"))
    assert line.endswith("warning Scrape failed node=n1 error=refused")


def test_a_line_for_programs_is_one_json_object() -> None:
    entry = json.loads(logs.JsonFormat().format(record(node="n1", at_ms=5)))
    assert entry["message"] == "Scrape failed"
    assert entry["level"] == "warning"
    assert (entry["node"], entry["at_ms"]) == ("n1", 5)
