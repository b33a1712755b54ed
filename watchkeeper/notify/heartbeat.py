"""Send heartbeats while the hub works, so that an external monitor alerts if they stop (a dead man's switch).

The hub calls an external monitor each minute (`notify.heartbeat_file`, for example a check of healthchecks.io), and
with `notify.watchdog` it sends each Alertmanager an alert `Watchdog` that always fires and ends if it is not repeated.
The alert is off by default, because routes without a rule for it would send notifications.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.config import settings as config
from watchkeeper.errors import ReceiverError
from watchkeeper.notify.receiver_http import http_post

BEAT_SECONDS = 60.0
# Two heartbeats can be lost.
WATCHDOG_TTL = timedelta(minutes=3)
WATCHDOG_NAME = "Watchdog"


# Loops that must work before a heartbeat is sent, by the first word of their names.
VITAL_LOOPS = frozenset({"incidents", "rules", "rule", "samples", "own", "discovery"})


def send_heartbeat(settings: config.Settings, now: datetime) -> None:
    """Send all configured heartbeats; blocks. ReceiverError lists the failures, without secrets."""
    notify_settings, problems = settings.notify, []
    has_watchdog = notify_settings.watchdog and notify_settings.via is config.NotifyVia.ALERTMANAGER
    for url in notify_settings.alertmanager_urls if has_watchdog else ():
        body = json.dumps([watchdog_alert(settings.fleet.cluster, now)]).encode()
        problems.append(_call(f"{url.rstrip('/')}/api/v2/alerts", body, where=url))
    if (path := notify_settings.heartbeat_file) is not None:
        try:
            problems.append(_call(Path(path).read_text(encoding="utf-8").strip(), b"{}", where=path))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: reading the heartbeat URL failed: {type(error).__name__}")
    if any(problems):
        raise ReceiverError("; ".join(filter(None, problems)))


def watchdog_alert(cluster: str, now: datetime) -> dict[str, object]:
    return {
        "labels": {"alertname": WATCHDOG_NAME, "severity": "none", "cluster": cluster, "source": "watchkeeper"},
        "annotations": {"summary": "Watchkeeper is running. If this alert ends, it is not."},
        "startsAt": now.isoformat(),
        "endsAt": (now + WATCHDOG_TTL).isoformat(),
    }


def _call(url: str, body: bytes, *, where: str) -> str:
    """Return the error text, or an empty text; never the URL, which may contain a secret."""
    try:
        status, _ = http_post(url, body, {"Content-Type": "application/json"})
    except ReceiverError as error:
        return f"{where}: heartbeat failed: {error.problem}"
    return "" if 200 <= status < 300 else f"{where}: heartbeat failed: answered {status}"
