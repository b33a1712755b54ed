"""The dead man's switch: while the hub works, somebody outside hears so every minute, and raises the alarm at silence.

Nobody can report their own death. So a monitor elsewhere is called (`notify.heartbeat_file`, such as a check of
healthchecks.io), and with `notify.watchdog` each Alertmanager gets an alert `Watchdog` that always fires and ends by
itself when it is not repeated; by default it does not, because routes that do not know it would tell people. `hub.py`
calls `beat` only after its loops have worked; a hub that cannot write or evaluate falls silent.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

from watchkeeper.config import settings as config
from watchkeeper.errors import ReceiverError
from watchkeeper.notify.receiver_http import http_post

BEAT_SECONDS = 60.0
# Two beats may be lost on the way.
HOLDS = timedelta(minutes=3)
NAME = "Watchdog"


# What a hub must do to be called alive: loops by the first word of their names.
VITAL = frozenset({"incidents", "rules", "rule", "samples", "standing", "discovery"})


def send_heartbeat(settings: config.Settings, now: datetime) -> None:
    """Tell everybody who listens; ReceiverError says who did not hear it, without secrets. Blocks."""
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
        return f"{path}: the address of the heartbeat cannot be read: {type(error).__name__}"
    return _call(address, b"{}", where=path)


def watchdog_alert(cluster: str, now: datetime) -> dict[str, object]:
    return {
        "labels": {"alertname": NAME, "severity": "none", "cluster": cluster, "source": "watchkeeper"},
        "annotations": {"summary": "Watchkeeper works; when this alert ends, it does not"},
        "startsAt": now.isoformat(),
        "endsAt": (now + HOLDS).isoformat(),
    }


def _call(url: str, body: bytes, *, where: str) -> str:
    """What went wrong; the address itself may hold a secret and is not said."""
    try:
        status, _ = http_post(url, body, {"Content-Type": "application/json"})
    except ReceiverError as error:
        return f"{where}: the heartbeat was not heard: {error.problem}"
    return "" if 200 <= status < 300 else f"{where}: the heartbeat was answered with {status}"
