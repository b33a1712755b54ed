"""`render alertmanager`: receivers and routes of [notify] in its own words, and inhibition by packs/effects.csv.

Prometheus (`render prometheus`) and the hub give alerts the same labels, so one tree of routes serves both. What
Alertmanager cannot do stands as a comment at its place; a receiver that it does not know goes through the hub. No
secret is written: each stands in a file that the comment names.
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
NOBODY, HUB = "nobody", "watchkeeper"
DAY_NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Labels that only the hub's alerts have: Prometheus does not know racks, jobs and incidents.
OF_THE_HUB = frozenset({"rack", "leaf", "workload", "incident"})
# Apprise's word for a service that Alertmanager 0.25 knows as well: its key, the key of its secret, and what that is.
SERVICES = {
    "slack": ("slack_configs", "api_url_file", "the address of the incoming webhook"),
    "pagerduty": ("pagerduty_configs", "routing_key_file", "the integration key"),
    "opsgenie": ("opsgenie_configs", "api_key_file", "the API key"),
}
SCHEME = re.compile(r"([a-z0-9]+)://", re.IGNORECASE)
ABOUT = """Alertmanager for the alerts of Prometheus and of the hub. Try it with: amtool check-config alertmanager.yml
and: amtool config routes test --config.file=alertmanager.yml severity=critical team=research
Secrets are not here: put each into the file that is named."""


@dataclass(frozen=True, slots=True)
class RouteReceiver:
    """A receiver as one kind of route wants it; Alertmanager tells of ends by receiver, the hub by route."""

    receiver: routing.Receiver
    sends_resolved: bool = True

    @property
    def name(self) -> str:
        return self.receiver.name if self.sends_resolved else f"{self.receiver.name}-without-resolved"


def files(settings: config.Settings) -> list[RenderedFile]:
    return [RenderedFile("alertmanager.yml", config_text(settings))]


def config_text(settings: config.Settings) -> str:
    book = _book(settings)
    known = {receiver.name: receiver for receiver in book.receivers}
    routes: list[YamlPart] = []
    wanted: dict[str, RouteReceiver] = {}
    intervals: list[dict[str, Any]] = []
    for number, route in enumerate(_routes(book), 1):
        name = f"hours of route {number}"
        intervals += [_interval(name, route)] if route.hours else []
        for at, receiver in enumerate(route.receivers, 1):
            one = RouteReceiver(known[receiver], route.notifies_resolved)
            wanted[one.name] = one
            is_last = at == len(route.receivers)
            routes.append(_route(route, one.name, hours=name if route.hours else None, is_last=is_last))
    root = {"receiver": NOBODY, "group_by": ["cluster", "cause", "node"], "group_wait": "10s", "group_interval": "5m"}
    parts = [
        "# What no route below takes is told to nobody, as in the hub. A group is what would be one incident there.\n"
        + yaml_text.dump({"route": {**root, "repeat_interval": "4h"}})
        + _indented(yaml_text.dump_list("routes", routes)),
        yaml_text.dump_list(
            "receivers", [YamlPart({"name": NOBODY}), *(_receiver(one, settings) for one in wanted.values())]
        ),
        yaml_text.dump({"time_intervals": intervals}) if intervals else "",
        "# A cause and its effects at the same place (packs/effects.csv): people are told of the cause.\n"
        + yaml_text.dump_list("inhibit_rules", list(_inhibition())),
    ]
    about = ABOUT + (f"\nNot expressible: {'; '.join(lost)}." if (lost := _lost(book)) else "")
    return "\n".join([yaml_text.comment(about), *(part for part in parts if part)])


def _book(settings: config.Settings) -> routing.Routing:
    """The routing of the hub; where there is none, everything above `info` goes to the hub, by severity."""
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
    return [routing.Route(tuple(one.name for one in book.receivers), match=('severity!="info"',))]


def _route(route: routing.Route, receiver: str, *, hours: str | None, is_last: bool) -> YamlPart:
    value: dict[str, Any] = {"receiver": receiver}
    notes: list[str] = []
    matchers = [_translated(matcher) for matcher in route.matchers]
    if matchers:
        value["matchers"] = [_written(matcher) for matcher in matchers]
    value |= {"group_wait": route.wait, "repeat_interval": route.repeat}
    if hours is not None:
        value["active_time_intervals"] = [hours]
        notes.append("Outside its hours the hub tries the routes below; Alertmanager stops here and tells nobody.")
    if route.continues or not is_last:
        value["continue"] = True
    if route.escalate_to:
        whom = ", ".join(route.escalate_to)
        notes.append(f"Not expressible: after {route.escalate_after} without acknowledgement the hub tells {whom}.")
    alone = sorted({matcher.name for matcher in route.matchers} & OF_THE_HUB)
    if alone:
        notes.append(f"Only alerts of the hub have the label {' and '.join(alone)}; those of Prometheus do not match.")
    return YamlPart(value, "\n".join(notes))


def _written(matcher: silences.Matcher) -> str:
    """The matcher with its value escaped as Alertmanager reads it."""
    value = matcher.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return str(replace(matcher, value=value))


def _translated(matcher: silences.Matcher) -> silences.Matcher:
    """A family as the causes that belong to it: alerts carry a cause."""
    if matcher.name == "incident":
        return replace(matcher, name=alertmanager.INCIDENT_LABEL)
    if matcher.name != "family":
        return matcher
    is_meant = patterns.compile_pattern(matcher.value).fullmatch if matcher.is_regex else matcher.value.__eq__
    found = [row.cause for row in causes.all_causes() if is_meant(row.family)]
    return silences.Matcher("cause", "|".join(found), is_regex=True, is_equal=matcher.is_equal)


def _receiver(wanted: RouteReceiver, settings: config.Settings) -> YamlPart:
    one = wanted.receiver
    ends = {} if wanted.sends_resolved else {"send_resolved": False}
    notes = [] if one.per_minute == routing.Receiver(HUB, webhook="http://x").per_minute else [_pace(one)]
    if one.webhook is not None:
        is_hub = one.webhook == _hub_webhook(settings)
        secret = f"{SECRETS}/{one.name}" if one.token_file is not None or (is_hub and settings.hub.tokens) else None
        if not is_hub:
            notes.append("It gets Alertmanager's own JSON, not the hub's.")
        return YamlPart(
            {"name": wanted.name, "webhook_configs": [_webhook(one.webhook, secret) | ends]}, "\n".join(notes)
        )
    value: dict[str, Any] = {"name": wanted.name}
    for scheme in _schemes(one):
        if scheme in SERVICES:
            key, file_key, what = SERVICES[scheme]
            secret = f"{SECRETS}/{one.name}.{scheme}"
            value.setdefault(key, []).append({file_key: secret} | (ends or {"send_resolved": True}))
            notes.append(f"{secret} holds {what}.")
        else:
            hub = _webhook(_hub_webhook(settings), f"{SECRETS}/{HUB}" if settings.hub.tokens else None)
            value["webhook_configs"] = [hub | ends]
            notes.append(
                f"Not expressible: {scheme}. It goes through the hub, which tells {one.name} itself where [notify] via "
                'is "receivers".'
            )
    return YamlPart(value, "\n".join(notes))


def _schemes(receiver: routing.Receiver) -> list[str]:
    """Which services the addresses of a receiver name; nothing else of that file is looked at."""
    try:
        text = Path(receiver.apprise_file or "").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ["an address that cannot be read here"]
    return list(dict.fromkeys(scheme.lower() for scheme in SCHEME.findall(text))) or ["no address"]


def _pace(receiver: routing.Receiver) -> str:
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
        # A job's alert names no machine, and Alertmanager does not know where a job runs.
        families = effects.affected_families(row.cause) if row.scope != "workload" else frozenset()
        targets = [one.cause for one in causes.all_causes() if one.family in families and one.cause != row.cause]
        if not targets:
            continue
        # A label that neither alert has counts as equal, so the place must be named.
        places = ["node", "gpu"] if row.scope == "gpu" else ["node"]
        yield YamlPart(
            {
                "source_matchers": [f'cause="{row.cause}"'],
                "target_matchers": [f'cause=~"{"|".join(targets)}"', *(f'{place}!=""' for place in places)],
                "equal": ["cluster", *places],
            }
        )


def _lost(book: routing.Routing) -> list[str]:
    return ["the digest of the week"] if book.digest is not None else []


def _indented(text: str) -> str:
    return "".join(f"  {line}" if line.strip() else line for line in text.splitlines(keepends=True))
