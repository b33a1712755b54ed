"""Exchange alerts with Alertmanager: send incidents as alerts, and receive alerts through its webhook.

Out: each open incident is one alert of API v2. It is repeated while it is open, with an end time slightly in the
future: an Alertmanager that restarts gets everything with the next repetition, and one that loses the hub resolves the
alert itself. In: alerts of another Prometheus become incidents with causes and plans, without a change to its rules.
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

# As in Prometheus, an alert ends four repetitions after the last one.
REPEAT = timedelta(seconds=30)
# Shorter after a failure: Alertmanager may only be restarting.
RETRY = timedelta(seconds=5)
ALERT_TTL = 4 * REPEAT
# A resolved alert is repeated for the time that Alertmanager may need to restart.
REPEAT_RESOLVED = timedelta(minutes=15)
# Undelivered ends are resent for this time, also after a restart of the hub, up to this number.
RESEND_ENDS_WITHIN, MAX_UNSENT_ENDS = timedelta(days=1), 10_000
BATCH_SIZE = 500
# Marks alerts that the hub sent, so that the webhook ignores them.
INCIDENT_LABEL = "watchkeeper_incident"
LABELS = ("cluster", "node", "gpu", "rack", "leaf", "cause", "severity", "team", "namespace")
MAX_ALERTS, MAX_LABELS, MAX_VALUE_LENGTH = 10_000, 64, 4096
# Each signal of an incident keeps the labels of its alert.
MAX_LABEL_SET_LENGTH = 16 * 1024
MAX_PROBLEMS = 10
# dcgm-exporter's counter and most rule files have the Xid code in one of these labels.
XID_LABELS = ("xid", "err_code", "code")
XID_PATTERN = re.compile(r"\bXID[ :=#]*(\d{1,3})\b", re.IGNORECASE)
Texts = Mapping[str, str]
Plain = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PostedAlert:
    labels: Texts
    body: Plain


def alert_labels(incident: Incident, subject: IncidentLabels) -> dict[str, str]:
    """The labels of the Alertmanager alert for an incident; of several values, a label gets the first."""
    place = (incident.place.domain or "").partition("=")[0]
    labels = {name: min(subject[name]) for name in (*LABELS, place) if subject.get(name)}
    # Without an alert, the cause is the name: `gpu_fell_off_bus` as `GpuFellOffBus`.
    camel_case = "".join(part.capitalize() for part in incident.cause.split("_"))
    return labels | {"alertname": min(subject.get("alertname", ()), default=camel_case), INCIDENT_LABEL: incident.id}


def make_alert(incident: Incident, subject: IncidentLabels, context: MessageContext, *, now: datetime) -> PostedAlert:
    labels = alert_labels(incident, subject)
    incident_diagnosis, plan = context.diagnosis(incident.id), context.plan(incident.id)
    best = incident_diagnosis.best if incident_diagnosis is not None else None
    annotations = {
        "summary": incident.title,
        "description": best.why if best is not None else causes.lookup(incident.cause).why,
        "next_step": plan.next_step if plan is not None else incident.advice,
        "workloads": ", ".join(incident.workloads),
        "runbook_url": runbook_path(incident.cause),
    }
    body: dict[str, Any] = {
        "labels": labels,
        "annotations": {name: text for name, text in annotations.items() if text},
        "startsAt": wire.format_time(incident.opened_at),
        "endsAt": wire.format_time(incident.resolved_at or now + ALERT_TTL),
    }
    if context.console_url is not None:
        body["generatorURL"] = console_link(incident, context.console_url)
    return PostedAlert(labels, body)


@dataclass(frozen=True, slots=True)
class _EndedAlert:
    body: Plain
    since: datetime
    is_delivered: bool = False


class AlertmanagerFeed:
    """The alerts for one Alertmanager: open incidents are repeated, and an alert with changed labels ends.

    An end is resent until Alertmanager accepts it once, because its receivers were notified of the start.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._last_alerts: dict[str, PostedAlert] = {}
        self._ends: dict[str, _EndedAlert] = {}

    def next_alerts(self, incident_alerts: Iterable[tuple[Incident, PostedAlert]], *, now: datetime) -> list[Plain]:
        """The batch to send now: all open incidents, and all ends that are recent or undelivered."""
        firing, current = list[Plain](), dict[str, PostedAlert]()
        for incident, alert in incident_alerts:
            previous = self._last_alerts.get(incident.id)
            if previous is not None and previous.labels != alert.labels:
                ended = {**previous.body, "endsAt": wire.format_time(now)}
                self._ends[f"{incident.id} {previous.labels}"] = _EndedAlert(ended, now)
            current[incident.id] = alert
            if incident.resolved_at is None:
                self._ends.pop(incident.id, None)
                # These labels fire again, so an undelivered end for them is obsolete.
                self._ends.pop(f"{incident.id} {alert.labels}", None)
                firing.append(alert.body)
            elif incident.id not in self._ends and now - incident.resolved_at <= RESEND_ENDS_WITHIN:
                self._ends[incident.id] = _EndedAlert(alert.body, incident.resolved_at)
        self._last_alerts = current
        unsent_ends = list(self._ends.items())[-MAX_UNSENT_ENDS:]
        self._ends = {key: end for key, end in unsent_ends if key in current or not end.is_delivered}
        ends = self._ends.values()
        return firing + [end.body for end in ends if not end.is_delivered or now - end.since <= REPEAT_RESOLVED]

    def send(self, batch: Sequence[Plain]) -> str:
        """Send a batch. Return the error text, or an empty text; the next repetition retries."""
        try:
            for first in range(0, len(batch), BATCH_SIZE):
                self._post("alerts", json.dumps(batch[first : first + BATCH_SIZE], ensure_ascii=False))
        except ReceiverError as error:
            return str(error)
        self._ends = {key: replace(end, is_delivered=True) for key, end in self._ends.items()}
        return ""

    def create_silence(self, silence: silences.Silence) -> str:
        body = json.dumps(
            {
                "matchers": [
                    {
                        "name": INCIDENT_LABEL if matcher.name == "incident" else matcher.name,
                        "value": matcher.value,
                        "isRegex": matcher.is_regex,
                        "isEqual": matcher.is_equal,
                    }
                    for matcher in silence.matchers
                ],
                "startsAt": wire.format_time(silence.starts_at),
                "endsAt": wire.format_time(silence.ends_at),
                "createdBy": silence.author,
                "comment": silence.reason,
            }
        )
        # Alertmanagers of one cluster replicate silences.
        answer = self._post("silences", body)
        try:
            return str(json.loads(answer)["silenceID"])
        except (ValueError, KeyError, TypeError) as error:
            raise ReceiverError(f"unexpected answer {answer}: expected a silenceID", where=self.url) from error

    def end_silence(self, id: str) -> None:
        status, answer = http_call("DELETE", f"{self.url}/api/v2/silence/{quote_path(id, safe='')}", {})
        self._check_status(status, answer.decode("utf-8", "replace").strip())

    def _post(self, path: str, body: str) -> str:
        headers = {"Content-Type": "application/json"}
        status, answer = http_post(f"{self.url}/api/v2/{path}", body.encode(), headers)
        self._check_status(status, answer)
        return answer

    def _check_status(self, status: int, answer: str) -> None:
        if status != 200:
            raise ReceiverError(f"answered {status}: {answer}", where=self.url)


@dataclass(frozen=True, slots=True)
class ReceivedAlerts:
    alerts: tuple[alerts.Alert, ...]
    problems: tuple[str, ...] = ()


def read_webhook(
    body: bytes, now: datetime, *, cause_by_alert_name: Texts, stale: timedelta = external_alerts.STALE_AFTER
) -> ReceivedAlerts:
    """The alerts of a webhook call (version 4) that the hub did not send itself; WireError if the body is invalid.

    `cause_by_alert_name` has the causes of the hub's rules. An alert that is not repeated expires after `stale`.
    """
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError((f"not JSON: {error}",)) from error
    entries = plain.get("alerts") if isinstance(plain, dict) else None
    if not isinstance(entries, list):
        raise WireError(("expected Alertmanager's webhook: an object with a list `alerts`",))
    if len(entries) > MAX_ALERTS:
        raise WireError((f"alerts: {len(entries):,} alerts, the limit is {MAX_ALERTS:,}",))
    accepted, problems = list[alerts.Alert](), list[str]()
    for at, entry in enumerate(entries):
        try:
            alert = _read_alert(entry, now, cause_by_alert_name=cause_by_alert_name, stale=stale)
        except KeyError as error:
            problems.append(f"alerts[{at}]: {error.args[0]} is missing")
            continue
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            problems.append(f"alerts[{at}]: {error}")
            continue
        if alert is not None:
            accepted.append(alert)
    if problems and not accepted:
        raise WireError(tuple(problems[:MAX_PROBLEMS]))
    return ReceivedAlerts(tuple(accepted), tuple(problems[:MAX_PROBLEMS]))


def _read_alert(plain: Plain, now: datetime, *, cause_by_alert_name: Texts, stale: timedelta) -> alerts.Alert | None:
    """An alert of the webhook, or None if the hub sent it; raise ValueError if it is invalid."""
    labels = _read_texts(plain.get("labels"), "labels")
    annotations = _read_texts(plain.get("annotations") or {}, "annotations")
    if INCIDENT_LABEL in labels:
        return None
    if "alertname" not in labels:
        raise ValueError("labels.alertname is missing")
    # A clock that runs ahead must not move an alert into the future.
    started = min(wire.parse_time(plain["startsAt"]), now)
    is_resolved = plain.get("status") == "resolved"
    # Deliberately not a label: annotations change while the alert stays the same.
    annotations[signals.CAUSE_ANNOTATION] = find_cause(labels, annotations, cause_by_alert_name=cause_by_alert_name)
    # Alertmanager writes the year 1 for an unknown end.
    ends_at = wire.parse_time(plain["endsAt"]) if is_resolved or plain.get("endsAt") else None
    if not is_resolved:
        annotations[external_alerts.EXPIRY_ANNOTATION] = external_alerts.expiry_text(ends_at, now, stale)
    return alerts.Alert(
        labels=Labels({**labels, external_alerts.SOURCE_LABEL: external_alerts.SOURCE}),
        state=alerts.AlertState.RESOLVED if is_resolved else alerts.AlertState.FIRING,
        active_at=started,
        fired_at=started,
        value=1.0,
        annotations=annotations,
        resolved_at=max(started, min(ends_at or now, now)) if is_resolved else None,
    )


def find_cause(labels: Texts, annotations: Texts, *, cause_by_alert_name: Texts) -> str:
    """The cause of an external alert: from its label `cause`, its Xid, or the hub's rule with the same name."""
    named_cause = labels.get("cause", "")
    if named_cause and causes.lookup(named_cause).cause == named_cause:
        return named_cause
    codes = [labels[name] for name in XID_LABELS if labels.get(name, "").isdecimal()]
    text = " ".join([labels["alertname"], *annotations.values()])
    if not codes and (match := XID_PATTERN.search(text)) is not None:
        codes = [match[1]]
    if codes and len(codes[0]) < 4:
        return xid.lookup(int(codes[0])).cause
    return cause_by_alert_name.get(labels["alertname"], diagnosis.UNKNOWN_CAUSE)


def _read_texts(plain: Any, where: str) -> dict[str, str]:
    if not isinstance(plain, Mapping) or not all(isinstance(value, str) for value in plain.values()):
        raise ValueError(f"{where} must be an object of strings, got {quote(plain)}")
    if len(plain) > MAX_LABELS:
        raise ValueError(f"{where} has {len(plain):,} entries, the limit is {MAX_LABELS}")
    total_length = sum(len(str(name)) + len(value) for name, value in plain.items())
    if total_length > MAX_LABEL_SET_LENGTH:
        raise ValueError(f"{where} has {total_length:,} characters in total, the limit is {MAX_LABEL_SET_LENGTH:,}")
    longest_value = max(map(len, plain.values()), default=0)
    if longest_value > MAX_VALUE_LENGTH:
        raise ValueError(f"{where} has a value of {longest_value:,} characters, the limit is {MAX_VALUE_LENGTH:,}")
    return dict(plain)
