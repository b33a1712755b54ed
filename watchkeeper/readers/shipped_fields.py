"""One entry of a structured log, written as syslog would have it: time, node, program, text.

journald, Docker, Fluent Bit, Vector, Loki, Elasticsearch, Google's and Amazon's logs all name the same things
differently, and put some of them one level deeper. `shipped_text` asks for lines of JSON and CSV,
`shipped_documents` for the entries of a whole answer. What a place is called stays in the text, where `line_prefix`
finds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

# Where structured logs keep their text (journald, Docker, zap, structlog, Loki, Google, Datadog, Splunk), their time
# and their node.
MESSAGES = (
    *("MESSAGE", "message", "msg", "log", "text", "line", "textPayload", "@message", "content", "body", "_raw"),
    "event",
)
# An entry whose own fields stand one level deeper.
INSIDE = ("jsonPayload", "_source", "content", "attributes", "result", "message")
TIMES = ("time", "timestamp", "ts", "@timestamp", "asctime", "date", "_time")
NODES = ("_HOSTNAME", "hostname", "host", "node", "nodename", "node_name", "host.name", "k8s.node.name")
LABELS = ("labels", "stream", "kubernetes", "attributes", "tags", "fields")
LABELLED_NODES = (*NODES, "pod_node_name", "kubernetes_node_name", "kubernetes_host", "instance")
PODS = ("pod_name", "pod", "k8s.pod.name", "kubernetes_pod_name")
CONTAINERS = ("container_name", "container")
PROGRAMS = ("SYSLOG_IDENTIFIER", "_COMM", "logger", "ident")
LEVELS = ("level", "levelname", "severity", "stream")
GRAVE = ("error", "fatal", "critical")
# Docker's own lines have these alone, and there are many of them: they take the short way.
DOCKER = frozenset({"log", "stream", "time"})
REALTIME = "__REALTIME_TIMESTAMP"
# Fields that have a place of their own in the line.
PLACED = frozenset({*TIMES, *NODES, *PROGRAMS, *LEVELS, *LABELS, "rank", "resource"})
# Different sets of fields that lines of one log have.
MAX_FIELD_SETS = 256
# Syslog's form needs a time before the node and a name that begins with a letter.
NAME = re.compile(r"[A-Za-z][\w.-]*")
# Seconds, milliseconds, microseconds and nanoseconds since 1970 differ by their number of digits.
DIGITS_OF_SECONDS = 10


def entry(fields: object) -> tuple[Mapping[str, Any], str] | None:
    """The fields of an entry and which of them has the text; an object of Kubernetes is none."""
    if not isinstance(fields, dict) or "apiVersion" in fields:
        return None
    name = _message(fields)
    if name is not None:
        return fields, name
    for outer in INSIDE:
        inner = fields.get(outer)
        if isinstance(inner, dict) and (name := _message(inner)) is not None:
            return {key: value for key, value in fields.items() if key != outer} | inner, name
    return None


def _message(fields: Mapping[str, Any]) -> str | None:
    return next((name for name in MESSAGES if name in fields and isinstance(fields[name], str)), None)


def written(fields: Mapping[str, Any], name: str) -> str:
    """The entry as one line, then what else its fields say in words."""
    if fields.keys() <= DOCKER:
        return f"{fields.get('time', '')} {fields[name].rstrip()}".replace("\n", " ")
    labels = _labels(fields)
    node = _first(fields, NODES) or _first(labels, LABELLED_NODES)
    program = _first(fields, PROGRAMS) or "log"
    time = _time(fields)
    place = ""
    if node:
        is_plain = time and NAME.fullmatch(node)
        place = f"{node} {program}: " if is_plain else f"[node/{node}] {program}: "
    if pod := _first(fields, PODS[:1]) or _first(labels, PODS):
        place += f"[pod/{pod}/{_first(labels, CONTAINERS) or ''}] "
    rank = f"[rank{fields['rank']}]: " if isinstance(fields.get("rank"), int | str) else ""
    level = next((f" level={fields[key]}" for key in LEVELS if key in fields and str(fields[key]).lower() in GRAVE), "")
    more = level + "".join(
        f" {key}={value if isinstance(value, str) else json.dumps(value)}"
        for key in _others(tuple(fields))
        if (value := fields[key]) and key != name and isinstance(value, str | dict | list)
    )
    return f"{time + ' ' if time else ''}{place}{rank}{fields[name].rstrip()}{more}".replace("\n", " ")


def _labels(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a shipper says about who wrote an entry."""
    resource = fields.get("resource")
    inner = (resource.get("labels"), resource.get("attributes")) if isinstance(resource, dict) else ()
    found: dict[str, Any] = {}
    for labels in (*inner, *(fields[name] for name in LABELS if name in fields)):
        if isinstance(labels, dict):
            found |= labels
    return found


@lru_cache(MAX_FIELD_SETS)
def _others(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Fields without a place of their own; those of the journal say who wrote a line and how it came there."""
    return tuple(key for key in keys if key not in PLACED and not key.startswith("_") and not key.isupper())


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these that is a text; Elastic's `host` and `pod` have theirs in `name`."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("name")
        if value and isinstance(value, str):
            return value
    return None


def _time(fields: Mapping[str, Any]) -> str | None:
    for name in (*TIMES, REALTIME):
        value = fields.get(name)
        if isinstance(value, str) and value and not value.isdigit():
            return value
        if isinstance(value, int | float | str) and value and (at := _since_1970(value)) is not None:
            return at
    return None


def _since_1970(value: float | str) -> str | None:
    try:
        number = float(value)
        digits = len(str(int(number)))
        thousands = max(0, (digits - DIGITS_OF_SECONDS) // 3)
        return (
            datetime.fromtimestamp(number / 1000**thousands, UTC).isoformat() if digits >= DIGITS_OF_SECONDS else None
        )
    except (ValueError, OverflowError, OSError):
        return None
