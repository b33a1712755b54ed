"""Firing alerts from Alertmanager, each with the time when it expires if Alertmanager sends no update.

Alertmanager repeats a firing alert every `repeat_interval` and notifies once when it is resolved. That notification may
never arrive: Prometheus is gone, the route changed, the hub was down for days. The expiry time is an annotation of the
alert, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from watchkeeper.kit import wire
from watchkeeper.model import alerts
from watchkeeper.model.labels import Labels

# Marks an alert as external, so that the hub's own rules do not resolve it.
SOURCE_LABEL, SOURCE = "alert_source", "alertmanager"
EXPIRY_ANNOTATION = "watchkeeper_until"
# Three of Alertmanager's default `repeat_interval`.
STALE_AFTER = timedelta(hours=12)
# Alertmanager retries each group_interval: soon after a restart it repeats what the hub missed.
GRACE = timedelta(minutes=15)
# An `endsAt` that is further ahead is not plausible.
MAX_VALIDITY = timedelta(days=366)
CHECK_INTERVAL = timedelta(seconds=10)
MAX_ALERTS = 100_000


class ExternalAlerts:
    """Firing external alerts and their expiry times; used only by the incident thread."""

    def __init__(self, stored_alerts: Iterable[alerts.Alert], *, now: datetime) -> None:
        # With the time when each expires.
        self._firing: dict[Labels, tuple[alerts.Alert, datetime]] = {}
        self._next_check_at = now
        self.update(stored_alerts, now)
        for alert, until in list(self._firing.values()):
            self._firing[alert.labels] = alert, max(until, now + GRACE)

    def update(self, updates: Iterable[alerts.Alert], now: datetime) -> None:
        """Apply alerts from Alertmanager; alerts of the hub's own rules are ignored."""
        for alert in updates:
            if SOURCE_LABEL not in alert.labels:
                continue
            self._firing.pop(alert.labels, None)
            if alert.state is alerts.AlertState.FIRING:
                text = alert.annotations.get(EXPIRY_ANNOTATION, "")
                self._firing[alert.labels] = alert, wire.parse_time(text) if text else now + STALE_AFTER

    def firing(self) -> Iterable[alerts.Alert]:
        return (alert for alert, _ in self._firing.values())

    def expired(self, now: datetime) -> list[alerts.Alert]:
        """Return the alerts that expire now, as resolved alerts; past the limit, those without updates for longest."""
        if self._next_check_at <= now + CHECK_INTERVAL and now < self._next_check_at:
            return []
        self._next_check_at = now + CHECK_INTERVAL
        late = [
            _expire(alert, now, f"no update until {until:%Y-%m-%d %H:%M:%S}Z")
            for alert, until in self._firing.values()
            if until <= now
        ]
        surplus = max(0, len(self._firing) - MAX_ALERTS)
        reason = f"{len(self._firing):,} external alerts are firing, the limit is {MAX_ALERTS:,}"
        return late + [_expire(alert, now, reason) for alert in list(self.firing())[:surplus]]


def expiry_text(ends_at: datetime | None, now: datetime, stale: timedelta) -> str:
    """When a firing alert expires: its own `endsAt` if that is in the future, else after `stale` without an update."""
    return wire.format_time(min(ends_at, now + MAX_VALIDITY) if ends_at is not None and ends_at > now else now + stale)


def _expire(alert: alerts.Alert, now: datetime, reason: str) -> alerts.Alert:
    summary = alert.annotations.get("summary") or alert.name
    return replace(
        alert,
        state=alerts.AlertState.RESOLVED,
        resolved_at=now,
        annotations={**alert.annotations, "summary": f"{summary} (expired: {reason})"},
    )
