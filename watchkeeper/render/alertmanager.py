"""`render alertmanager`: an Alertmanager configuration with the receivers and routes of [notify], and inhibition rules.

Prometheus (`render prometheus`) and the hub give alerts the same labels, so one routing tree serves both. Features
that Alertmanager lacks become comments; a receiver type that it lacks is sent through the hub. No secret is written:
a comment names the file for each.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.config import settings as config
from watchkeeper.model import silences
from watchkeeper.notify import alertmanager, email_address, routing
from watchkeeper.query.promql import patterns
from watchkeeper.render import yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.render.yaml_text import InlineMapping, YamlPart

SECRETS = "/etc/alertmanager/secrets"
NO_RECEIVER, HUB = "none", "watchkeeper"
DAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Labels that only the hub's alerts have: Prometheus has no racks, jobs and incidents.
HUB_LABELS = frozenset({"rack", "leaf", "workload", "incident"})
# Apprise schemes that Alertmanager 0.25 also supports, beside e-mail: its key, that of the secret file, and the secret.
SERVICES = {
    "slack": ("slack_configs", "api_url_file", "the address of the incoming webhook"),
    "pagerduty": ("pagerduty_configs", "routing_key_file", "the integration key"),
    "opsgenie": ("opsgenie_configs", "api_key_file", "the API key"),
}
SCHEME = re.compile(r"([a-z0-9]+)://", re.IGNORECASE)
# Alertmanager speaks TLS from the first byte only with this port.
IMPLICIT_TLS_PORT = 465
ABOUT = """Alertmanager for the alerts of Prometheus and of the hub. Check it with: amtool check-config alertmanager.yml
and: amtool config routes test --config.file=alertmanager.yml severity=critical team=research
Secrets are not rendered: put each into the file that its comment names."""


def files(settings: config.Settings) -> list[RenderedFile]:
    return [RenderedFile("alertmanager.yml", config_text(settings))]


def config_text(settings: config.Settings) -> str:
    book = _load_routing(settings)
    receivers = {receiver.name: receiver for receiver in book.receivers}
    routes: list[YamlPart] = []
    # Alertmanager sets send_resolved by receiver, the hub by route: a receiver may be written twice.
    written = {NO_RECEIVER: YamlPart({"name": NO_RECEIVER})}
    intervals: list[dict[str, Any]] = []
    for number, route in enumerate(book.routes, 1):
        hours = f"hours of route {number}" if route.hours else None
        intervals += [_interval(hours, route)] if hours else []
        for at, receiver in enumerate(route.receivers, 1):
            name = receiver if route.notifies_resolved else f"{receiver}-without-resolved"
            written[name] = _receiver(name, receivers[receiver], route.notifies_resolved, settings)
            routes.append(_route(route, name, hours=hours, is_last=at == len(route.receivers)))
    root = {"receiver": NO_RECEIVER, "group_by": ["cluster", "cause", "node"], "group_wait": "10s"}
    parts = [
        "# Alerts that match no route are not notified, as in the hub. A group is one incident of the hub.\n"
        + yaml_text.dump({"route": {**root, "group_interval": "5m", "repeat_interval": "4h"}})
        + textwrap.indent(yaml_text.dump_list("routes", routes), "  "),
        yaml_text.dump_list("receivers", list(written.values())),
        yaml_text.dump({"time_intervals": intervals}) if intervals else "",
        "# Effects of a cause at the same place are inhibited (packs/effects.csv).\n"
        + yaml_text.dump_list("inhibit_rules", list(_inhibition())),
    ]
    about = ABOUT if book.digest is None else f"{ABOUT}\nNot expressible: the weekly digest."
    return "\n".join([yaml_text.comment(about), *(part for part in parts if part)])


def _load_routing(settings: config.Settings) -> routing.Routing:
    """The routing of the hub; without one, warning and critical alerts go to the hub."""
    if settings.notify.routes is None:
        hub = routing.Receiver(HUB, webhook=_hub_webhook(settings))
        critical = routing.Route((HUB,), match=('severity="critical"',), wait="10s", repeat="1h")
        warning = routing.Route((HUB,), match=('severity="warning"',), wait="1m", repeat="12h")
        return routing.Routing((hub,), (critical, warning))
    book = routing.load(Path(settings.notify.routes))
    if book.routes or not book.receivers:
        return book
    names = tuple(receiver.name for receiver in book.receivers)
    return replace(book, routes=(routing.Route(names, match=('severity!="info"',)),))


def _route(route: routing.Route, receiver: str, *, hours: str | None, is_last: bool) -> YamlPart:
    value: dict[str, Any] = {"receiver": receiver}
    notes: list[str] = []
    if route.matchers:
        value["matchers"] = [_matcher_text(matcher) for matcher in route.matchers]
    value |= {"group_wait": route.wait, "repeat_interval": route.repeat}
    if hours is not None:
        value["active_time_intervals"] = [hours]
        notes.append(
            "Outside these hours the hub continues with the next routes; Alertmanager stops here and sends nothing."
        )
    if route.continues or not is_last:
        value["continue"] = True
    if route.escalate_to:
        escalation = ", ".join(route.escalate_to)
        notes.append(
            f"Not expressible: after {route.escalate_after} without acknowledgement the hub also notifies {escalation}."
        )
    hub_labels = sorted({matcher.name for matcher in route.matchers} & HUB_LABELS)
    if hub_labels:
        notes.append(
            f"Only alerts of the hub have the label {' and '.join(hub_labels)}; alerts of Prometheus do not match."
        )
    return YamlPart(value, "\n".join(notes))


def _matcher_text(matcher: silences.Matcher) -> str:
    """The matcher for Alertmanager: `family` becomes its causes and `incident` its label; alerts have no family."""
    if matcher.name == "incident":
        matcher = replace(matcher, name=alertmanager.INCIDENT_LABEL)
    elif matcher.name == "family":
        matches_family = patterns.compile_pattern(matcher.value).fullmatch if matcher.is_regex else matcher.value.__eq__
        cause_ids = "|".join(row.cause for row in causes.all_causes() if matches_family(row.family))
        matcher = silences.Matcher("cause", cause_ids, is_regex=True, is_equal=matcher.is_equal)
    value = matcher.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return str(replace(matcher, value=value))


def _receiver(name: str, receiver: routing.Receiver, sends_resolved: bool, settings: config.Settings) -> YamlPart:
    resolved_option = {} if sends_resolved else {"send_resolved": False}
    notes = []
    if receiver.per_minute != routing.Receiver(HUB, webhook="http://x").per_minute:
        notes.append(f"Not expressible: at most {receiver.per_minute} messages a minute.")
    value: dict[str, Any] = {"name": name}
    if receiver.webhook is not None:
        is_hub = receiver.webhook == _hub_webhook(settings)
        needs_secret = receiver.token_file is not None or (is_hub and settings.hub.tokens)
        webhook = _webhook(receiver.webhook, f"{SECRETS}/{receiver.name}" if needs_secret else None)
        if not is_hub:
            notes.append("It receives Alertmanager's JSON, not the hub's.")
        return YamlPart({**value, "webhook_configs": [webhook | resolved_option]}, "\n".join(notes))
    for number, address in enumerate(_read_addresses(receiver), 1):
        key, service, note = _service(address, receiver.name, number=number, settings=settings)
        # Alertmanager's webhook sends it by default, most of its services do not.
        option = resolved_option or ({} if key == "webhook_configs" else {"send_resolved": True})
        if (entry := service | option) not in (entries := value.setdefault(key, [])):
            entries.append(entry)
        notes += [note] if note and note not in notes else []
    return YamlPart(value, "\n".join(notes))


def _read_addresses(receiver: routing.Receiver) -> list[str]:
    """The Apprise addresses of a receiver; an empty one if there is none."""
    try:
        return Path(receiver.apprise_file or "").read_text(encoding="utf-8").split() or [""]
    except (OSError, UnicodeDecodeError):
        return [""]


def _service(address: str, receiver: str, *, number: int, settings: config.Settings) -> tuple[str, dict[str, Any], str]:
    """The key, the entry and a note of an Apprise address; the hub sends what Alertmanager cannot."""
    match, secret = SCHEME.match(address), f"{SECRETS}/{receiver}"
    # Deliberately never the address: it may be a secret.
    scheme = match[1].lower() if match else "a file without a readable address"
    if scheme in SERVICES:
        key, file_key, what = SERVICES[scheme]
        return key, {file_key: f"{secret}.{scheme}"}, f"{secret}.{scheme} contains {what}."
    email = email_address.read_email_address(address)
    if email is not None and (email.mode != "ssl" or email.port == IMPLICIT_TLS_PORT):
        entry, note = _email(email, f"{secret}.mailto" if number == 1 else f"{secret}.mailto{number}")
        return "email_configs", entry, note
    hub = _webhook(_hub_webhook(settings), f"{SECRETS}/{HUB}" if settings.hub.tokens else None)
    via_hub = f'It is sent to the hub, which notifies {receiver} if [notify] via is "receivers".'
    return "webhook_configs", hub, f"Not expressible: {scheme}. {via_hub}"


def _email(email: email_address.EmailAddress, password: str) -> tuple[dict[str, Any], str]:
    host = f"[{email.host}]" if ":" in email.host else email.host
    # With the port of implicit TLS, Alertmanager takes `require_tls` for a second STARTTLS.
    entry: dict[str, Any] = {
        "to": ", ".join((*email.to, *email.cc, *email.bcc)),
        "from": email.sender,
        "smarthost": f"{host}:{email.port}",
        "require_tls": email.mode == "starttls",
    }
    headers = {"To": email.to, "Cc": email.cc, "Reply-To": email.reply_to}
    if email.cc or email.bcc or email.reply_to:
        entry["headers"] = {name: ", ".join(addresses) for name, addresses in headers.items() if addresses}
    if not email.verifies_certificate:
        entry["tls_config"] = {"insecure_skip_verify": True}
    if not (email.user and email.has_password):
        return entry, ""
    entry |= {"auth_username": email.user, "auth_password_file": password}
    no_tls = (
        " Alertmanager sends no password with PLAIN, because this is without TLS." if email.mode == "insecure" else ""
    )
    return entry, f"{password} contains the password of {email.user} at {host}.{no_tls}"


def _webhook(url: str, secret: str | None) -> dict[str, Any]:
    return {"url": url} | ({"http_config": {"authorization": {"credentials_file": secret}}} if secret else {})


def _hub_webhook(settings: config.Settings) -> str:
    return f"{settings.render.hub_url.rstrip('/')}/api/alertmanager"


def _interval(name: str, route: routing.Route) -> dict[str, Any]:
    parts = []
    for hours in route.open_hours:
        part: dict[str, Any] = {"weekdays": [DAY_NAMES[day] for day in sorted(hours.days)]}
        if (hours.begin, hours.end) != (routing.WeekHours(frozenset()).begin, None):
            end = f"{hours.end:%H:%M}" if hours.end is not None else "24:00"
            part["times"] = [InlineMapping(start_time=f"{hours.begin:%H:%M}", end_time=end)]
        parts.append({**part, "location": route.zone})
    return {"name": name, "time_intervals": parts}


def _inhibition() -> Iterable[YamlPart]:
    for row in causes.all_causes():
        # A job's alert names no node, and Alertmanager does not know where a job runs.
        families = causes.affected_families(row.cause) if row.scope != "workload" else frozenset()
        affected = (
            other.cause for other in causes.all_causes() if other.family in families and other.cause != row.cause
        )
        if targets := "|".join(affected):
            # A label that both alerts lack counts as equal, so the place must be set.
            places = ["node", "gpu"] if row.scope == "gpu" else ["node"]
            matchers = [f'cause=~"{targets}"', *(f'{place}!=""' for place in places)]
            source = [f'cause="{row.cause}"']
            yield YamlPart({"source_matchers": source, "target_matchers": matchers, "equal": ["cluster", *places]})
