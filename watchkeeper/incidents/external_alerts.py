"""Alerts of somebody else's rules that fire, and until when each is believed if it is neither repeated nor ended.

Alertmanager repeats what fires every `repeat_interval` and says once when it is over. That one call may never come: its
Prometheus is gone, its route was changed, the hub was away for days. So each alert carries a time after which it counts
as over: the `endsAt` that it brought, else some hours after it was last heard of. The pipeline tells `Foreign` what was
kept and takes what is `overdue`; the time lies in the alert itself, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.kit import wire
from watchkeeper.model import alerts
from watchkeeper.model.labels import Labels

# Marks an alert as theirs, so that no rule of ours claims it.
SOURCE_LABEL, SOURCE = "alert_source", "alertmanager"
UNTIL = "watchkeeper_until"
# Three of Alertmanager's default `repeat_interval`.
STALE = timedelta(hours=12)
# What was to be repeated while the hub was away is repeated soon after: Alertmanager tries again each group_interval.
GRACE = timedelta(minutes=15)
# A sender that names an end centuries ahead names none.
FARTHEST = timedelta(days=366)
LOOK_AGAIN = timedelta(seconds=10)
MOST_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class _TrackedAlert:
    alert: alerts.Alert
    until: datetime


class ExternalAlerts:
    """Belongs to the thread of the incidents."""

    def __init__(self, known: Iterable[alerts.Alert], *, now: datetime) -> None:
        self._kept: dict[Labels, _TrackedAlert] = {}
        self._look_at = now
        self.update(known, now)
        self._kept = {key: replace(kept, until=max(kept.until, now + GRACE)) for key, kept in self._kept.items()}

    def update(self, found: Iterable[alerts.Alert], now: datetime) -> None:
        """Take over what Alertmanager said; alerts of our own rules are left alone."""
        for alert in found:
            if SOURCE_LABEL not in alert.labels:
                continue
            self._kept.pop(alert.labels, None)
            if alert.state is alerts.AlertState.FIRING:
                text = alert.annotations.get(UNTIL, "")
                self._kept[alert.labels] = _TrackedAlert(alert, wire.parse_time(text) if text else now + STALE)

    def firing(self) -> Iterable[alerts.Alert]:
        return (kept.alert for kept in self._kept.values())

    def expired(self, now: datetime) -> list[alerts.Alert]:
        """Those that count as over now, resolved and with the words for it; the longest unheard ones past the limit."""
        if self._look_at <= now + LOOK_AGAIN and now < self._look_at:
            return []
        self._look_at = now + LOOK_AGAIN
        late = [
            _over(kept.alert, now, f"neither repeated nor ended by {kept.until:%Y-%m-%d %H:%M:%S}Z")
            for kept in self._kept.values()
            if kept.until <= now
        ]
        surplus = max(0, len(self._kept) - MOST_KEPT)
        reason = f"{len(self._kept):,} such alerts fire, the limit is {MOST_KEPT:,}"
        return late + [_over(kept.alert, now, reason) for kept in list(self._kept.values())[:surplus]]


def expiry_text(ends_at: datetime | None, now: datetime, stale: timedelta) -> str:
    """The time to keep with a firing alert: its own end if that lies ahead, else when it was silent for too long."""
    return wire.format_time(min(ends_at, now + FARTHEST) if ends_at is not None and ends_at > now else now + stale)


def _over(alert: alerts.Alert, now: datetime, why: str) -> alerts.Alert:
    said = alert.annotations.get("summary") or alert.name
    return replace(
        alert,
        state=alerts.AlertState.RESOLVED,
        resolved_at=now,
        annotations={**alert.annotations, "summary": f"{said} ({why}: counts as over)"},
    )
