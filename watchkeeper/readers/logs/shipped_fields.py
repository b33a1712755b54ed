"""Format one entry of a structured log as a syslog line: time, node, program, text.

Log shippers and clouds use different names for the same field, such as `hostName`, `host.name`, `_HOSTNAME` or
`Computer`, at different depths; so names are compared by their letters only. `shipped_text` formats lines of JSON and
CSV, `shipped_documents` the entries of a JSON document; `line_prefix` reads the node and pod from the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

# The names of an entry's fields by role, letters only, in order of precedence.
ROLE_NAMES = {
    "messages": (
        *("message", "msg", "log", "text", "line", "textpayload", "syslogmessage", "content", "body", "raw", "event"),
    ),
    "times": ("time", "timestamp", "ts", "asctime", "date", "datetime", "timegenerated", "realtimetimestamp"),
    "nodes": (
        *("hostname", "nodename", "host", "node", "computer", "computername", "machine", "machinename", "k8snodename"),
        *("kubernetesnodename", "kuberneteshost", "podnodename"),
    ),
    # Last resort, if the value looks like a node name: a label of Prometheus, and a field of Graylog.
    "sources": ("instance", "source"),
    "pods": ("podname", "pod", "k8spodname", "kubernetespodname"),
    "containers": ("containername", "container"),
    "programs": ("syslogidentifier", "comm", "logger", "ident", "program", "processname"),
    "levels": ("level", "levelname", "severity", "stream"),
    "labels": ("resource", "labels", "stream", "kubernetes", "attributes", "tags", "fields"),
}
ERROR_LEVELS = ("error", "fatal", "critical")
# These, and the rank, are not repeated after the message.
PREFIX_ROLES = ("times", "nodes", "programs", "levels", "labels")
# Keys whose value is the entry itself, one level deeper.
NESTED_ENTRIES = ("jsonPayload", "_source", "content", "attributes", "result", "message")
# Only these name a node at any depth.
DEEP_NODES = frozenset({"nodename", "hostname"})
MAX_DEPTH = 5
# Docker's lines have only these keys; they are frequent, so they have a fast path.
DOCKER = frozenset({"log", "stream", "time"})
# Cached sets of field names; a log has few different ones.
MAX_FIELD_SETS = 256
# The syslog format needs a time before the node, and a node name that starts with a letter.
NAME = re.compile(r"[A-Za-z][\w.-]*")
# gpu07      10.0.0.7      but not the name of a program or file
NODE_LIKE = re.compile(r"[\w.-]*\d[\w.:-]*")
FILE = re.compile(r"\.(?:py|go|c|cc|cpp|rs|js|log|txt)(?::\d+)?$")
NOT_LETTERS = re.compile(r"[^a-z0-9]")
# {hostname="gpu07", job="kern"}      (labels as text)
LABEL = re.compile(r'([\w.]+)="([^"]*)"')
# Nanoseconds, microseconds, milliseconds and seconds since 1970 differ in size; a smaller number is not a time.
UNITS = (1e9, 1e6, 1e3, 1.0)
EARLIEST_SECONDS = 1e9


FieldRoles = Mapping[str, Sequence[str]]


@lru_cache(MAX_FIELD_SETS)
def _assign_roles(keys: tuple[str, ...]) -> FieldRoles:
    """The keys of an entry by role, each in order of precedence; the journal's own upper-case keys are ignored."""
    keys_by_name: dict[str, list[str]] = {}
    for key in keys:
        keys_by_name.setdefault(NOT_LETTERS.sub("", key.lower()), []).append(key)
    roles = {role: [key for name in names for key in keys_by_name.get(name, ())] for role, names in ROLE_NAMES.items()}
    prefix_keys = {key for role in PREFIX_ROLES for key in roles[role]} | set(keys_by_name.get("rank", ()))
    others = [key for key in keys if key not in prefix_keys and not key.startswith("_") and not key.isupper()]
    return {**roles, "others": others}


def find_message(fields: object) -> tuple[Mapping[str, Any], str] | None:
    """The fields of an entry and the key of its message; None for other JSON, such as a Kubernetes object."""
    if not isinstance(fields, dict) or "apiVersion" in fields:
        return None
    name = _message_key(fields)
    if name is not None:
        return fields, name
    for outer in NESTED_ENTRIES:
        inner = fields.get(outer)
        if isinstance(inner, dict) and (name := _message_key(inner)) is not None:
            return {key: value for key, value in fields.items() if key != outer} | inner, name
    return None


def _message_key(fields: Mapping[str, Any]) -> str | None:
    return next((name for name in _assign_roles(tuple(fields))["messages"] if isinstance(fields[name], str)), None)


def find_message_column(names: Iterable[str]) -> str | None:
    """The column that contains the message; None if there is none."""
    return next(iter(_assign_roles(tuple(names))["messages"]), None)


def format_entry(fields: Mapping[str, Any], name: str) -> str:
    """The entry as one line: time, place, rank and message, then the other text fields."""
    if fields.keys() <= DOCKER:
        return f"{fields.get('time', '')} {fields[name].rstrip()}".replace("\n", " ")
    roles = _assign_roles(tuple(fields))
    time = _read_time(fields, roles["times"])
    place = _place(fields, roles, has_time=time is not None)
    rank = f"[rank{fields['rank']}]: " if isinstance(fields.get("rank"), int | str) else ""
    level = next((f" level={fields[key]}" for key in roles["levels"] if str(fields[key]).lower() in ERROR_LEVELS), "")
    suffix = level + "".join(
        f" {key}={value if isinstance(value, str) else json.dumps(value)}"
        for key in roles["others"]
        if (value := fields[key]) and key != name and isinstance(value, str | dict | list)
    )
    return f"{time + ' ' if time else ''}{place}{rank}{fields[name].rstrip()}{suffix}".replace("\n", " ")


def _place(fields: Mapping[str, Any], roles: FieldRoles, *, has_time: bool) -> str:
    node, pod, container = _first_text(fields, roles["nodes"]), _first_text(fields, roles["pods"]), None
    if roles["labels"] and (labels := _labels(fields, roles["labels"])):
        label_roles = _assign_roles(tuple(labels))
        node = node or _first_text(labels, label_roles["nodes"]) or _node_like_source(labels, label_roles["sources"])
        pod = _first_text(labels, label_roles["pods"]) or pod
        container = _first_text(labels, label_roles["containers"])
    node = node or _find_deep_node(fields, roles["others"], 0) or _node_like_source(fields, roles["sources"])
    place = ""
    if node:
        program = _first_text(fields, roles["programs"]) or "log"
        place = f"{node} {program}: " if has_time and NAME.fullmatch(node) else f"[node/{node}] {program}: "
    return f"{place}[pod/{pod}/{container or ''}] " if pod else place


def _labels(fields: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """The labels of an entry, merged from all its label fields."""
    merged: dict[str, Any] = {}
    for name in names:
        label_group = _parse_labels(fields[name])
        for inner in ("labels", "attributes") if name == "resource" else ():
            merged |= label_group[inner] if isinstance(label_group.get(inner), dict) else {}
        merged |= label_group
    return merged


def _parse_labels(labels: object) -> dict[str, Any]:
    if isinstance(labels, dict):
        return labels
    if not isinstance(labels, str) or not labels.startswith("{"):
        return {}
    try:
        parsed = json.loads(labels)
    except ValueError:
        return dict(LABEL.findall(labels))
    return parsed if isinstance(parsed, dict) else {}


def _find_deep_node(value: object, names: Iterable[Any], depth: int) -> str | None:
    """The name of a node at any depth, because health monitors send nested events."""
    if depth > MAX_DEPTH or not isinstance(value, dict | list):
        return None
    for name in names:
        child = value[name]
        if isinstance(child, str):
            if isinstance(name, str) and child and NOT_LETTERS.sub("", name.lower()) in DEEP_NODES:
                return child
        elif isinstance(child, dict | list):
            node = _find_deep_node(child, list(child) if isinstance(child, dict) else range(len(child)), depth + 1)
            if node is not None:
                return node
    return None


def _first_text(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The first of these fields that is a text; for a mapping, as Elastic's `host`, its `name`."""
    for name in names:
        value = fields[name]
        if isinstance(value, dict):
            value = value.get("name")
        if value and isinstance(value, str):
            return value
    return None


def _node_like_source(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    value = _first_text(fields, names)
    return value if value is not None and NODE_LIKE.fullmatch(value) and not FILE.search(value) else None


def _read_time(fields: Mapping[str, Any], names: Sequence[str]) -> str | None:
    for name in names:
        value = fields[name]
        if isinstance(value, str) and value and not value.isdigit():
            return value
        if isinstance(value, int | float | str) and value and (time := _format_epoch(value)) is not None:
            return time
    return None


def _format_epoch(value: float | str) -> str | None:
    try:
        number = float(value)
        unit = next((unit for unit in UNITS if number >= EARLIEST_SECONDS * unit), None)
        return None if unit is None else datetime.fromtimestamp(number / unit, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None
