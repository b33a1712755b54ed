"""One entry of a structured log, written as syslog would have it: time, node, program, text.

journald, Docker, Fluent Bit, Vector, Loki, Elasticsearch, and the logs of Google, Amazon and Microsoft call the same
things `hostName`, `host.name`, `_HOSTNAME` or `Computer`, and put some of them deeper. So names are compared by their
letters alone. `shipped_text` asks for lines of JSON and CSV, `shipped_documents` for the entries of a whole answer;
what a place is called stays in the text, where `line_prefix` finds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

# What the fields of an entry are called, by their letters, in the order in which they are asked.
MESSAGES = (
    *("message", "msg", "log", "text", "line", "textpayload", "syslogmessage", "content", "body", "raw", "event"),
)
TIMES = ("time", "timestamp", "ts", "asctime", "date", "datetime", "timegenerated", "realtimetimestamp")
NODES = (
    *("hostname", "nodename", "host", "node", "computer", "computername", "machine", "machinename", "k8snodename"),
    *("kubernetesnodename", "kuberneteshost", "podnodename"),
)
# As a last resort, where the value looks like a machine's name: a label of Prometheus, and Graylog's word.
SOURCES = ("instance", "source")
PODS = ("podname", "pod", "k8spodname", "kubernetespodname")
CONTAINERS = ("containername", "container")
PROGRAMS = ("syslogidentifier", "comm", "logger", "ident", "program", "processname")
LEVELS = ("level", "levelname", "severity", "stream")
GRAVE = ("error", "fatal", "critical")
LABELS = ("resource", "labels", "stream", "kubernetes", "attributes", "tags", "fields")
PLACED = frozenset({*TIMES, *NODES, *PROGRAMS, *LEVELS, *LABELS, "rank"})
# An entry whose own fields stand one level deeper.
INSIDE = ("jsonPayload", "_source", "content", "attributes", "result", "message")
# Only these name a machine wherever they stand.
DEEP_NODES = frozenset({"nodename", "hostname"})
MAX_DEPTH = 5
# Docker's own lines have these alone, and there are many of them: they take the short way.
DOCKER = frozenset({"log", "stream", "time"})
# Different sets of fields that lines of one log have.
MAX_FIELD_SETS = 256
# Syslog's form needs a time before the node and a name that begins with a letter.
NAME = re.compile(r"[A-Za-z][\w.-]*")
# gpu07      10.0.0.7      but no name of a program or of a file
MACHINE = re.compile(r"[\w.-]*\d[\w.:-]*")
FILE = re.compile(r"\.(?:py|go|c|cc|cpp|rs|js|log|txt)(?::\d+)?$")
NOT_LETTERS = re.compile(r"[^a-z0-9]")
# {hostname="gpu07", job="kern"}      (labels as text)
LABEL = re.compile(r'([\w.]+)="([^"]*)"')
# Nanoseconds, microseconds, milliseconds and seconds since 1970 are told apart by their size; less is no time of a log.
UNITS = (1e9, 1e6, 1e3, 1.0)
EARLIEST_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class _Keys:
    """Which fields an entry has for what, in the order in which they are asked."""

    messages: tuple[str, ...]
    times: tuple[str, ...]
    nodes: tuple[str, ...]
    sources: tuple[str, ...]
    pods: tuple[str, ...]
    containers: tuple[str, ...]
    programs: tuple[str, ...]
    levels: tuple[str, ...]
    labels: tuple[str, ...]
    others: tuple[str, ...]


@lru_cache(MAX_FIELD_SETS)
def _keys(given: tuple[str, ...]) -> _Keys:
    """Worked out once for each set of fields; those of the journal say who wrote a line and how it came there."""
    called: dict[str, list[str]] = {}
    for key in given:
        called.setdefault(NOT_LETTERS.sub("", key.lower()), []).append(key)
    placed = {key for name in PLACED for key in called.get(name, ())}
    others = tuple(key for key in given if key not in placed and not key.startswith("_") and not key.isupper())

    def known(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(key for name in names for key in called.get(name, ()))

    return _Keys(
        messages=known(MESSAGES),
        times=known(TIMES),
        nodes=known(NODES),
        sources=known(SOURCES),
        pods=known(PODS),
        containers=known(CONTAINERS),
        programs=known(PROGRAMS),
        levels=known(LEVELS),
        labels=known(LABELS),
        others=others,
    )


def find_message(fields: object) -> tuple[Mapping[str, Any], str] | None:
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
    for name in _keys(tuple(fields)).messages:
        if isinstance(fields[name], str):
            return name
    return None


def message_column(names: Iterable[str]) -> str | None:
    """Which of some columns has the text."""
    return next(iter(_keys(tuple(names)).messages), None)


def format_entry(fields: Mapping[str, Any], name: str) -> str:
    """The entry as one line, then what else its fields say in words."""
    if fields.keys() <= DOCKER:
        return f"{fields.get('time', '')} {fields[name].rstrip()}".replace("\n", " ")
    keys = _keys(tuple(fields))
    time = _time(fields, keys.times)
    place = _place(fields, keys, has_time=time is not None)
    rank = f"[rank{fields['rank']}]: " if isinstance(fields.get("rank"), int | str) else ""
    level = next((f" level={fields[key]}" for key in keys.levels if str(fields[key]).lower() in GRAVE), "")
    more = level + "".join(
        f" {key}={value if isinstance(value, str) else json.dumps(value)}"
        for key in keys.others
        if (value := fields[key]) and key != name and isinstance(value, str | dict | list)
    )
    return f"{time + ' ' if time else ''}{place}{rank}{fields[name].rstrip()}{more}".replace("\n", " ")


def _place(fields: Mapping[str, Any], keys: _Keys, *, has_time: bool) -> str:
    node, pod, container = _first(fields, keys.nodes), _first(fields, keys.pods), None
    if keys.labels and (labels := _labels(fields, keys.labels)):
        named = _keys(tuple(labels))
        node = node or _first(labels, named.nodes) or _source(labels, named.sources)
        pod = _first(labels, named.pods) or pod
        container = _first(labels, named.containers)
    node = node or _deep(fields, keys.others, 0) or _source(fields, keys.sources)
    place = ""
    if node:
        program = _first(fields, keys.programs) or "log"
        place = f"{node} {program}: " if has_time and NAME.fullmatch(node) else f"[node/{node}] {program}: "
    return f"{place}[pod/{pod}/{container or ''}] " if pod else place


def _labels(fields: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """What a shipper says about who wrote an entry."""
    found: dict[str, Any] = {}
    for name in names:
        labels = _opened(fields[name])
        inner = (labels.get("labels"), labels.get("attributes"), labels) if name == "resource" else (labels,)
        for one in inner:
            found |= one if isinstance(one, dict) else {}
    return found


def _opened(labels: object) -> dict[str, Any]:
    if isinstance(labels, dict):
        return labels
    if not isinstance(labels, str) or not labels.startswith("{"):
        return {}
    try:
        found = json.loads(labels)
    except ValueError:
        return dict(LABEL.findall(labels))
    return found if isinstance(found, dict) else {}


def _deep(value: object, names: Iterable[Any], depth: int) -> str | None:
    """A node's name somewhere inside, as health monitors send whole events."""
    if depth > MAX_DEPTH or not isinstance(value, dict | list):
        return None
    for name in names:
        one = value[name]
        if isinstance(one, str):
            if isinstance(name, str) and one and NOT_LETTERS.sub("", name.lower()) in DEEP_NODES:
                return one
        elif isinstance(one, dict | list):
            inside = _deep(one, list(one) if isinstance(one, dict) else range(len(one)), depth + 1)
            if inside is not None:
                return inside
    return None


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these that is a text; Elastic's `host` and `pod` have theirs in `name`."""
    for name in names:
        value = fields[name]
        if isinstance(value, dict):
            value = value.get("name")
        if value and isinstance(value, str):
            return value
    return None


def _source(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    value = _first(fields, names)
    return value if value is not None and MACHINE.fullmatch(value) and not FILE.search(value) else None


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
