"""`render alertmanager`: an Alertmanager configuration with the receivers and routes of [notify], and inhibition rules.

Prometheus (`render prometheus`) and the hub give alerts the same labels, so one routing tree serves both. Features
that Alertmanager lacks become comments; a receiver type that it lacks is sent through the hub. No secret is written:
a comment names the file for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from watchkeeper.catalogue import causes, effects
from watchkeeper.config import settings as config
from watchkeeper.model import silences
from watchkeeper.notify import alertmanager, routing
from watchkeeper.query.promql import patterns
from watchkeeper.render import yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.render.yaml_text import InlineMapping, YamlPart

SECRETS = "/etc/alertmanager/secrets"
NO_RECEIVER, HUB = "none", "watchkeeper"
DAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Labels that only the hub's alerts have: Prometheus has no racks, jobs and incidents.
HUB_LABELS = frozenset({"rack", "leaf", "workload", "incident"})
# Apprise schemes that Alertmanager 0.25 also supports: its key, the key of the secret file, and the secret.
SERVICES = {
    "slack": ("slack_configs", "api_url_file", "the address of the incoming webhook"),
    "pagerduty": ("pagerduty_configs", "routing_key_file", "the integration key"),
    "opsgenie": ("opsgenie_configs", "api_key_file", "the API key"),
}
SCHEME = re.compile(r"([a-z0-9]+)://", re.IGNORECASE)
ABOUT = """Alertmanager for the alerts of Prometheus and of the hub. Check it with: amtool check-config alertmanager.yml
and: amtool config routes test --config.file=alertmanager.yml severity=critical team=research
Secrets are not rendered: put each into the file that its comment names."""


@dataclass(frozen=True, slots=True)
class RouteReceiver:
    """A receiver with the options of a route: Alertmanager sets send_resolved by receiver, the hub by route."""

    receiver: routing.Receiver
    sends_resolved: bool = True

    @property
    def name(self) -> str:
        return self.receiver.name if self.sends_resolved else f"{self.receiver.name}-without-resolved"


def files(settings: config.Settings) -> list[RenderedFile]:
    return [RenderedFile("alertmanager.yml", config_text(settings))]


def config_text(settings: config.Settings) -> str:
    book = _load_routing(settings)
    receivers = {receiver.name: receiver for receiver in book.receivers}
    routes: list[YamlPart] = []
    route_receivers: dict[str, RouteReceiver] = {}
    intervals: list[dict[str, Any]] = []
    for number, route in enumerate(_routes(book), 1):
        name = f"hours of route {number}"
        intervals += [_interval(name, route)] if route.hours else []
        for at, receiver in enumerate(route.receivers, 1):
            route_receiver = RouteReceiver(receivers[receiver], route.notifies_resolved)
            route_receivers[route_receiver.name] = route_receiver
            is_last = at == len(route.receivers)
            routes.append(_route(route, route_receiver.name, hours=name if route.hours else None, is_last=is_last))
    root = {
        "receiver": NO_RECEIVER,
        "group_by": ["cluster", "cause", "node"],
        "group_wait": "10s",
        "group_interval": "5m",
    }
    parts = [
        "# Alerts that match no route are not notified, as in the hub. A group is one incident of the hub.\n"
        + yaml_text.dump({"route": {**root, "repeat_interval": "4h"}})
        + _indented(yaml_text.dump_list("routes", routes)),
        yaml_text.dump_list(
            "receivers",
            [
                YamlPart({"name": NO_RECEIVER}),
                *(_receiver(route_receiver, settings) for route_receiver in route_receivers.values()),
            ],
        ),
        yaml_text.dump({"time_intervals": intervals}) if intervals else "",
        "# Effects of a cause at the same place are inhibited (packs/effects.csv).\n"
        + yaml_text.dump_list("inhibit_rules", list(_inhibition())),
    ]
    about = ABOUT + (
        f"\nNot expressible: {'; '.join(unsupported)}." if (unsupported := _unsupported_features(book)) else ""
    )
    return "\n".join([yaml_text.comment(about), *(part for part in parts if part)])


def _load_routing(settings: config.Settings) -> routing.Routing:
    """The routing of the hub; without one, warning and critical alerts go to the hub."""
    if settings.notify.routes is not None:
        return routing.load(Path(settings.notify.routes))
    hub = routing.Receiver(HUB, webhook=_hub_webhook(settings))
    return routing.Routing(
        (hub,),
        (
            routing.Route((HUB,), match=('severity="critical"',), wait="10s", repeat="1h"),
            routing.Route((HUB,), match=('severity="warning"',), wait="1m", repeat="12h"),
        ),
    )


def _routes(book: routing.Routing) -> Sequence[routing.Route]:
    if book.routes or not book.receivers:
        return book.routes
    return [routing.Route(tuple(receiver.name for receiver in book.receivers), match=('severity!="info"',))]


def _route(route: routing.Route, receiver: str, *, hours: str | None, is_last: bool) -> YamlPart:
    value: dict[str, Any] = {"receiver": receiver}
    notes: list[str] = []
    matchers = [_translate_matcher(matcher) for matcher in route.matchers]
    if matchers:
        value["matchers"] = [_matcher_text(matcher) for matcher in matchers]
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
    """The matcher as text, with its value escaped for Alertmanager."""
    value = matcher.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return str(replace(matcher, value=value))


def _translate_matcher(matcher: silences.Matcher) -> silences.Matcher:
    """Translate `family` into its causes and `incident` into its label: alerts have no family."""
    if matcher.name == "incident":
        return replace(matcher, name=alertmanager.INCIDENT_LABEL)
    if matcher.name != "family":
        return matcher
    matches_family = patterns.compile_pattern(matcher.value).fullmatch if matcher.is_regex else matcher.value.__eq__
    cause_ids = [row.cause for row in causes.all_causes() if matches_family(row.family)]
    return silences.Matcher("cause", "|".join(cause_ids), is_regex=True, is_equal=matcher.is_equal)


def _receiver(route_receiver: RouteReceiver, settings: config.Settings) -> YamlPart:
    receiver = route_receiver.receiver
    resolved_option = {} if route_receiver.sends_resolved else {"send_resolved": False}
    notes = (
        []
        if receiver.per_minute == routing.Receiver(HUB, webhook="http://x").per_minute
        else [_rate_limit_note(receiver)]
    )
    if receiver.webhook is not None:
        is_hub = receiver.webhook == _hub_webhook(settings)
        secret = (
            f"{SECRETS}/{receiver.name}"
            if receiver.token_file is not None or (is_hub and settings.hub.tokens)
            else None
        )
        if not is_hub:
            notes.append("It receives Alertmanager's JSON, not the hub's.")
        return YamlPart(
            {"name": route_receiver.name, "webhook_configs": [_webhook(receiver.webhook, secret) | resolved_option]},
            "\n".join(notes),
        )
    value: dict[str, Any] = {"name": route_receiver.name}
    for scheme in _schemes(receiver):
        if scheme in SERVICES:
            key, file_key, what = SERVICES[scheme]
            secret = f"{SECRETS}/{receiver.name}.{scheme}"
            value.setdefault(key, []).append({file_key: secret} | (resolved_option or {"send_resolved": True}))
            notes.append(f"{secret} contains {what}.")
        else:
            hub = _webhook(_hub_webhook(settings), f"{SECRETS}/{HUB}" if settings.hub.tokens else None)
            value["webhook_configs"] = [hub | resolved_option]
            notes.append(
                f"Not expressible: {scheme}. It is sent to the hub, which notifies {receiver.name} if [notify] via "
                'is "receivers".'
            )
    return YamlPart(value, "\n".join(notes))


def _schemes(receiver: routing.Receiver) -> list[str]:
    """The schemes of a receiver's Apprise addresses; nothing else of the file is used."""
    try:
        text = Path(receiver.apprise_file or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ["an address file that cannot be read"]
    return list(dict.fromkeys(scheme.lower() for scheme in SCHEME.findall(text))) or ["no address"]


def _rate_limit_note(receiver: routing.Receiver) -> str:
    return f"Not expressible: at most {receiver.per_minute} messages a minute."


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
        families = effects.affected_families(row.cause) if row.scope != "workload" else frozenset()
        targets = [
            effect.cause for effect in causes.all_causes() if effect.family in families and effect.cause != row.cause
        ]
        if not targets:
            continue
        # A label that both alerts lack counts as equal, so the place must be set.
        places = ["node", "gpu"] if row.scope == "gpu" else ["node"]
        yield YamlPart(
            {
                "source_matchers": [f'cause="{row.cause}"'],
                "target_matchers": [f'cause=~"{"|".join(targets)}"', *(f'{place}!=""' for place in places)],
                "equal": ["cluster", *places],
            }
        )


def _unsupported_features(book: routing.Routing) -> list[str]:
    return ["the weekly digest"] if book.digest is not None else []


def _indented(text: str) -> str:
    return "".join(f"  {line}" if line.strip() else line for line in text.splitlines(keepends=True))
