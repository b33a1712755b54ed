"""The dead man's switch: while the hub works, it calls a monitor elsewhere every minute; the monitor alerts on silence.

A hub that is down cannot report it. So a monitor outside is called (`notify.heartbeat_file`, for example a check of
healthchecks.io), and with `notify.watchdog` each Alertmanager gets an alert `Watchdog` that always fires and ends
if it is not repeated. The alert is off by default, because routes without a rule for it would send notifications.
`hub.py` calls `send_heartbeat` only while its loops work; a hub that cannot write or evaluate sends nothing.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.config import settings as config
from watchkeeper.errors import ReceiverError
from watchkeeper.notify.receiver_http import http_post

BEAT_SECONDS = 60.0
# Two heartbeats may be lost.
HOLDS = timedelta(minutes=3)
NAME = "Watchdog"


# Loops that must work for a heartbeat, by the first word of their names.
VITAL = frozenset({"incidents", "rules", "rule", "samples", "own", "discovery"})


def send_heartbeat(settings: config.Settings, now: datetime) -> None:
    """Send all configured heartbeats; raise ReceiverError for those that failed, without secrets. Blocks."""
    chosen, problems = settings.notify, []
    is_watched = chosen.watchdog and chosen.via is config.NotifyVia.ALERTMANAGER
    for url in chosen.alertmanager_urls if is_watched else ():
        body = json.dumps([watchdog_alert(settings.fleet.cluster, now)]).encode()
        problems.append(_call(f"{url.rstrip('/')}/api/v2/alerts", body, where=url))
    if chosen.heartbeat_file is not None:
        problems.append(_call_address(chosen.heartbeat_file))
    if any(problems):
        raise ReceiverError("; ".join(filter(None, problems)))


def _call_address(path: str) -> str:
    try:
        address = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: cannot read the heartbeat address: {type(error).__name__}"
    return _call(address, b"{}", where=path)


def watchdog_alert(cluster: str, now: datetime) -> dict[str, object]:
    return {
        "labels": {"alertname": NAME, "severity": "none", "cluster": cluster, "source": "watchkeeper"},
        "annotations": {"summary": "Watchkeeper is running. If this alert ends, it is not."},
        "startsAt": now.isoformat(),
        "endsAt": (now + HOLDS).isoformat(),
    }


def _call(url: str, body: bytes, *, where: str) -> str:
    """The error text, or an empty text; never the address, which may contain a secret."""
    try:
        status, _ = http_post(url, body, {"Content-Type": "application/json"})
    except ReceiverError as error:
        return f"{where}: heartbeat failed: {error.problem}"
    return "" if 200 <= status < 300 else f"{where}: heartbeat failed: answered {status}"
