"""Alertmanager both ways: our incidents become its alerts, and its webhook becomes our alerts.

Out: each open incident is one alert of its API v2, repeated while it is open, with an end a little ahead, so that an
Alertmanager that was down learns everything from the next repetition and one that we can no longer reach lets go by
itself. In: the alerts of somebody else's Prometheus become incidents, with causes and plans, without a change to its
rules. What it got from us comes back to us only to be left alone. Silences are Alertmanager's own: `silence` hands
one on, and `their_silences` reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote as quote_path

from watchkeeper.catalogue import causes, xid
from watchkeeper.errors import ReceiverError, WireError, quote
from watchkeeper.incidents import external_alerts, signals
from watchkeeper.incidents.incident_labels import IncidentLabels
from watchkeeper.kit import wire
from watchkeeper.model import alerts, diagnosis, silences
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import Labels
from watchkeeper.notify.message import MessageContext, console_link, runbook_path
from watchkeeper.notify.receiver_http import http_call, http_post

# An alert ends four repetitions after the last one, as Prometheus has it.
REPEAT = timedelta(seconds=30)
# One that did not answer is asked again soon: it may only have been restarted.
RETRY = timedelta(seconds=5)
KEPT = 4 * REPEAT
# One that is over is told so for as long as Alertmanager may have been away for a restart.
TOLD_OVER = timedelta(minutes=15)
# An end that nobody took is owed for so long, also after a restart of the hub; and so many ends are.
REMEMBERED, MOST_ENDS = timedelta(days=1), 10_000
AT_ONCE = 500
# Marks an alert as ours, so that our own webhook knows it.
INCIDENT_LABEL = "watchkeeper_incident"
LABELS = ("cluster", "node", "gpu", "rack", "leaf", "cause", "severity", "team", "namespace")
MOST_ALERTS, MOST_LABELS, LONGEST_VALUE = 10_000, 64, 4096
# Each signal of an incident keeps the labels of its alert.
LONGEST_TOGETHER = 16 * 1024
MOST_PROBLEMS = 10
# dcgm-exporter's own counter and most rule files carry the code of an Xid in one of these.
XID_LABELS = ("xid", "err_code", "code")
XID_WORDS = re.compile(r"\bXID[ :=#]*(\d{1,3})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PostedAlert:
    """One alert for Alertmanager: its identity is its labels."""

    labels: Mapping[str, str]
    body: Mapping[str, Any]


def labels_of(incident: Incident, subject: IncidentLabels) -> dict[str, str]:
    """What Alertmanager sees of an incident; of several values of a label the first is named."""
    place = (incident.place.domain or "").partition("=")[0]
    labels = {name: min(subject[name]) for name in (*LABELS, place) if subject.get(name)}
    names = sorted(subject.get("alertname", ()))
    return labels | {"alertname": names[0] if names else _camel(incident.cause), INCIDENT_LABEL: incident.id}


def make_alert(incident: Incident, subject: IncidentLabels, known: MessageContext, *, now: datetime) -> PostedAlert:
    """An incident as one alert."""
    labels = labels_of(incident, subject)
    found, plan = known.diagnosis(incident.id), known.plan(incident.id)
    best = found.best if found is not None else None
    annotations = {
        "summary": incident.title,
        "description": best.why if best is not None else causes.lookup(incident.cause).why,
        "next_step": plan.next_step if plan is not None else "",
        "workloads": ", ".join(incident.workloads),
        "runbook_url": runbook_path(incident.cause),
    }
    ends_at = incident.resolved_at if incident.resolved_at is not None else now + KEPT
    body: dict[str, Any] = {
        "labels": labels,
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": wire.format_time(incident.opened_at),
        "endsAt": wire.format_time(ends_at),
    }
    if known.console_url is not None:
        body["generatorURL"] = console_link(incident, known.console_url)
    return PostedAlert(labels, body)


@dataclass(frozen=True, slots=True)
class _EndedAlert:
    """That an alert is over, since when, and whether Alertmanager has taken the news."""

    body: Mapping[str, Any]
    since: datetime
    is_taken: bool = False


class AlertmanagerFeed:
    """One Alertmanager, to which open incidents are repeated; one whose labels change ends under its old ones.

    What fires is told anew with each repetition. That something is over is owed until it was taken once: its people
    heard of the beginning, and an Alertmanager that was away for an hour keeps them waiting for the end.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._last: dict[str, PostedAlert] = {}
        self._ends: dict[str, _EndedAlert] = {}

    def next_alerts(self, wanted: Iterable[tuple[Incident, PostedAlert]], *, now: datetime) -> list[Mapping[str, Any]]:
        """What to send now: every open incident, and every end that is young or not taken yet."""
        firing: list[Mapping[str, Any]] = []
        current: dict[str, PostedAlert] = {}
        for incident, alert in wanted:
            before = self._last.get(incident.id)
            if before is not None and before.labels != alert.labels:
                ended = {**before.body, "endsAt": wire.format_time(now)}
                self._ends[f"{incident.id} {before.labels}"] = _EndedAlert(ended, now)
            current[incident.id] = alert
            if incident.resolved_at is None:
                self._ends.pop(incident.id, None)
                # Labels that it has again are not over, although nobody took their end.
                self._ends.pop(f"{incident.id} {alert.labels}", None)
                firing.append(alert.body)
            elif incident.id not in self._ends and now - incident.resolved_at <= REMEMBERED:
                self._ends[incident.id] = _EndedAlert(alert.body, incident.resolved_at)
        self._last = current
        owed = list(self._ends.items())[-MOST_ENDS:]
        self._ends = {key: end for key, end in owed if key in current or not end.is_taken}
        told = (end for end in self._ends.values() if not end.is_taken or now - end.since <= TOLD_OVER)
        return [*firing, *(end.body for end in told)]

    def send(self, batch: Sequence[Mapping[str, Any]]) -> str:
        """Hand a batch over; returns what went wrong, which the next repetition mends, or an empty text."""
        try:
            for first in range(0, len(batch), AT_ONCE):
                body = json.dumps(batch[first : first + AT_ONCE], ensure_ascii=False).encode()
                status, answer = http_post(f"{self.url}/api/v2/alerts", body, {"Content-Type": "application/json"})
                if status != 200:
                    raise ReceiverError(f"answered {status}: {answer}", where=self.url)
        except ReceiverError as error:
            return str(error)
        self._ends = {key: replace(end, is_taken=True) for key, end in self._ends.items()}
        return ""

    def create_silence(self, wanted: silences.Silence) -> str:
        """Make a silence there and return its id; ReceiverError if it was not taken."""
        body = json.dumps(
            {
                "matchers": [
                    {
                        "name": INCIDENT_LABEL if one.name == "incident" else one.name,
                        "value": one.value,
                        "isRegex": one.is_regex,
                        "isEqual": one.is_equal,
                    }
                    for one in wanted.matchers
                ],
                "startsAt": wire.format_time(wanted.starts_at),
                "endsAt": wire.format_time(wanted.ends_at),
                "createdBy": wanted.author,
                "comment": wanted.reason,
            }
        ).encode()
        # Alertmanagers of one cluster tell each other.
        status, answer = http_post(f"{self.url}/api/v2/silences", body, {"Content-Type": "application/json"})
        if status != 200:
            raise ReceiverError(f"answered {status}: {answer}", where=self.url)
        try:
            return str(json.loads(answer)["silenceID"])
        except (ValueError, KeyError, TypeError) as error:
            raise ReceiverError(f"answered {answer}, where a silenceID was expected", where=self.url) from error

    def end_silence(self, id: str) -> None:
        """Have a silence end there now; ReceiverError if that was refused."""
        status, answer = http_call("DELETE", f"{self.url}/api/v2/silence/{quote_path(id, safe='')}", {})
        if status != 200:
            raise ReceiverError(f"answered {status}: {answer.decode('utf-8', 'replace').strip()}", where=self.url)


@dataclass(frozen=True, slots=True)
class ReceivedAlerts:
    """What one webhook call says: the alerts that can be read, and what is wrong with the others."""

    alerts: tuple[alerts.Alert, ...]
    problems: tuple[str, ...] = ()


def read_webhook(
    body: bytes, now: datetime, *, known: Mapping[str, str], stale: timedelta = external_alerts.STALE
) -> ReceivedAlerts:
    """The alerts of one webhook call (version 4), ours left out; WireError if it is not one.

    `known` has the cause of each alert name that our own rules use; `stale` is how long one that is not repeated lasts.
    """
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError((f"not JSON: {error}",)) from error
    listed = plain.get("alerts") if isinstance(plain, dict) else None
    if not isinstance(listed, list):
        raise WireError(("expected Alertmanager's webhook: an object with a list `alerts`",))
    if len(listed) > MOST_ALERTS:
        raise WireError((f"alerts: {len(listed):,} of them, the limit is {MOST_ALERTS:,}",))
    found: list[alerts.Alert] = []
    problems: list[str] = []
    for at, one in enumerate(listed):
        try:
            alert = _read_alert(one, now, known=known, stale=stale)
        except KeyError as error:
            problems.append(f"alerts[{at}]: {error.args[0]} is missing")
            continue
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            problems.append(f"alerts[{at}]: {error}")
            continue
        if alert is not None:
            found.append(alert)
    if problems and not found:
        raise WireError(tuple(problems[:MOST_PROBLEMS]))
    return ReceivedAlerts(tuple(found), tuple(problems[:MOST_PROBLEMS]))


def _read_alert(
    plain: Mapping[str, Any], now: datetime, *, known: Mapping[str, str], stale: timedelta
) -> alerts.Alert | None:
    """One alert of the webhook; None for one that we sent ourselves. ValueError says what cannot be."""
    labels, annotations = _texts(plain.get("labels"), "labels"), _texts(plain.get("annotations") or {}, "annotations")
    if INCIDENT_LABEL in labels:
        return None
    if "alertname" not in labels:
        raise ValueError("labels.alertname is missing")
    # A clock that runs ahead must not put an alert into the future.
    started = min(wire.parse_time(plain["startsAt"]), now)
    is_over = plain.get("status") == "resolved"
    # Not a label: words and values in annotations change while the alert stays the same.
    annotations[signals.CAUSE] = cause_of(labels, annotations, known=known)
    # Alertmanager itself writes the year 1 for an end that is not known.
    ends_at = wire.parse_time(plain["endsAt"]) if is_over or plain.get("endsAt") else None
    if not is_over:
        annotations[external_alerts.UNTIL] = external_alerts.expiry_text(ends_at, now, stale)
    return alerts.Alert(
        labels=Labels({**labels, external_alerts.SOURCE_LABEL: external_alerts.SOURCE}),
        state=alerts.AlertState.RESOLVED if is_over else alerts.AlertState.FIRING,
        active_at=started,
        fired_at=started,
        value=1.0,
        annotations=annotations,
        resolved_at=max(started, min(ends_at or now, now)) if is_over else None,
    )


def cause_of(labels: Mapping[str, str], annotations: Mapping[str, str], *, known: Mapping[str, str]) -> str:
    """What somebody else's rule means in our words: its own `cause`, the rule of ours with its name, or its Xid."""
    named = labels.get("cause", "")
    if named and causes.lookup(named).cause == named:
        return named
    codes = [labels[name] for name in XID_LABELS if labels.get(name, "").isdecimal()]
    text = " ".join([labels["alertname"], *annotations.values()])
    if not codes and (match := XID_WORDS.search(text)) is not None:
        codes = [match[1]]
    if codes and len(codes[0]) < 4:
        return xid.lookup(int(codes[0])).cause
    return known.get(labels["alertname"], diagnosis.UNKNOWN_CAUSE)


def _texts(plain: Any, where: str) -> dict[str, str]:
    if not isinstance(plain, Mapping) or not all(isinstance(value, str) for value in plain.values()):
        raise ValueError(f"{where} must be a table of texts, found {quote(plain)}")
    if len(plain) > MOST_LABELS:
        raise ValueError(f"{where} has {len(plain):,} entries, the limit is {MOST_LABELS}")
    whole = sum(len(str(name)) + len(value) for name, value in plain.items())
    if whole > LONGEST_TOGETHER:
        raise ValueError(f"{where} has {whole:,} characters in all, the limit is {LONGEST_TOGETHER:,}")
    longest = max(map(len, plain.values()), default=0)
    if longest > LONGEST_VALUE:
        raise ValueError(f"{where} holds a text of {longest:,} characters, the limit is {LONGEST_VALUE:,}")
    return dict(plain)


def _camel(cause: str) -> str:
    """`gpu_fell_off_bus` as rule names are written: `GpuFellOffBus`."""
    return "".join(part.capitalize() for part in cause.split("_"))
