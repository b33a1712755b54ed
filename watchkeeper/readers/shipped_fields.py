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
from dataclasses import dataclass
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
# Nanoseconds, microseconds, milliseconds and seconds since 1970 are told apart by their size; less is no time of a log.
UNITS = (1e9, 1e6, 1e3, 1.0)
EARLIEST_SECONDS = 1e9


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
    for name in MESSAGES:
        if name in fields and isinstance(fields[name], str):
            return name
    return None


def written(fields: Mapping[str, Any], name: str) -> str:
    """The entry as one line, then what else its fields say in words."""
    if fields.keys() <= DOCKER:
        return f"{fields.get('time', '')} {fields[name].rstrip()}".replace("\n", " ")
    keys = _keys(tuple(fields))
    labels = _labels(fields, keys.labels) if keys.labels else {}
    time = _time(fields, keys.times)
    place = _place(fields, labels, keys, has_time=time is not None)
    rank = f"[rank{fields['rank']}]: " if isinstance(fields.get("rank"), int | str) else ""
    level = next((f" level={fields[key]}" for key in keys.levels if str(fields[key]).lower() in GRAVE), "")
    more = level + "".join(
        f" {key}={value if isinstance(value, str) else json.dumps(value)}"
        for key in keys.others
        if (value := fields[key]) and key != name and isinstance(value, str | dict | list)
    )
    return f"{time + ' ' if time else ''}{place}{rank}{fields[name].rstrip()}{more}".replace("\n", " ")


@dataclass(frozen=True, slots=True)
class _Keys:
    """Which fields an entry has for what, in the order in which they are asked."""

    times: tuple[str, ...]
    nodes: tuple[str, ...]
    programs: tuple[str, ...]
    levels: tuple[str, ...]
    labels: tuple[str, ...]
    others: tuple[str, ...]


@lru_cache(MAX_FIELD_SETS)
def _keys(given: tuple[str, ...]) -> _Keys:
    """Worked out once for each set of fields; those of the journal say who wrote a line and how it came there."""
    present = frozenset(given)
    times, nodes, programs, levels, labels = (
        tuple(name for name in names if name in present)
        for names in ((*TIMES, REALTIME), NODES, PROGRAMS, LEVELS, ("resource", *LABELS))
    )
    others = tuple(key for key in given if key not in PLACED and not key.startswith("_") and not key.isupper())
    return _Keys(times, nodes, programs, levels, labels, others)


def _place(fields: Mapping[str, Any], labels: Mapping[str, Any], keys: _Keys, *, has_time: bool) -> str:
    node = _first(fields, keys.nodes) or _first(labels, LABELLED_NODES)
    place = ""
    if node:
        program = _first(fields, keys.programs) or "log"
        place = f"{node} {program}: " if has_time and NAME.fullmatch(node) else f"[node/{node}] {program}: "
    pod = _first(labels, PODS) if labels else None
    return f"{place}[pod/{pod}/{_first(labels, CONTAINERS) or ''}] " if pod else place


def _labels(fields: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """What a shipper says about who wrote an entry."""
    found: dict[str, Any] = {}
    for name in names:
        labels = fields[name]
        if isinstance(labels, dict):
            inner = (labels.get("labels"), labels.get("attributes")) if name == "resource" else (labels,)
            for one in inner:
                found |= one if isinstance(one, dict) else {}
    return found


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these that is a text; Elastic's `host` and `pod` have theirs in `name`."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("name")
        if value and isinstance(value, str):
            return value
    return None


def _time(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    for name in names:
        value = fields[name]
        if isinstance(value, str) and value and not value.isdigit():
            return value
        if isinstance(value, int | float | str) and value and (at := _since_1970(value)) is not None:
            return at
    return None


def _since_1970(value: float | str) -> str | None:
    try:
        number = float(value)
        unit = next((unit for unit in UNITS if number >= EARLIEST_SECONDS * unit), None)
        return None if unit is None else datetime.fromtimestamp(number / unit, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None
