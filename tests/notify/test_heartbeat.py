"""The dead man's switch: who gets the heartbeat, and that silence is the only alert."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from watchkeeper.config import settings
from watchkeeper.errors import ReceiverError
from watchkeeper.kit import recent_failures
from watchkeeper.notify import heartbeat

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
REQUESTS: list[tuple[str, object]] = []


class Ear(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        REQUESTS.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(500 if self.path.startswith("/broken") else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Deliberately silent."""


@pytest.fixture
def ear() -> Iterator[str]:
    REQUESTS.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ear)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def notify_settings(**notify: object) -> settings.Settings:
    return settings.Settings(notify=settings.NotifySettings(**notify))  # type: ignore[arg-type]


def test_alertmanager_gets_an_alert_that_ends_by_itself_and_a_monitor_is_called(ear: str, tmp_path: Path) -> None:
    (tmp_path / "beat").write_text(f"{ear}/ping/secret\n")
    via = settings.NotifyVia.ALERTMANAGER
    heartbeat.send_heartbeat(notify_settings(via=via, alertmanager_urls=(ear,)), NOW)
    assert REQUESTS == []
    both = notify_settings(via=via, alertmanager_urls=(ear,), watchdog=True, heartbeat_file=str(tmp_path / "beat"))
    heartbeat.send_heartbeat(both, NOW)
    (path, alerts), (ping, _) = REQUESTS
    assert (path, ping) == ("/api/v2/alerts", "/ping/secret")
    assert isinstance(alerts, list)
    assert alerts[0]["labels"]["alertname"] == "Watchdog"
    assert alerts[0]["endsAt"] == (NOW + heartbeat.WATCHDOG_TTL).isoformat()


def test_a_failed_heartbeat_is_reported_without_its_address_and_the_others_are_sent(ear: str, tmp_path: Path) -> None:
    (tmp_path / "beat").write_text(f"{ear}/broken/secret\n")
    with pytest.raises(ReceiverError) as raised:
        heartbeat.send_heartbeat(notify_settings(heartbeat_file=str(tmp_path / "beat")), NOW)
    assert "heartbeat failed: answered 500" in str(raised.value)
    assert "secret" not in str(raised.value)
    with pytest.raises(ReceiverError, match="reading the heartbeat URL failed: FileNotFoundError"):
        heartbeat.send_heartbeat(notify_settings(heartbeat_file=str(tmp_path / "nothing")), NOW)


def test_no_heartbeat_is_sent_unless_configured(ear: str) -> None:
    heartbeat.send_heartbeat(notify_settings(alertmanager_urls=(ear,)), NOW)
    assert REQUESTS == []


def test_failing_rules_stop_the_heartbeat_and_a_failing_fabric_does_not() -> None:
    failures = recent_failures.RecentFailures()
    failures.record("fabric", "ibnetdiscover is missing", now=NOW)
    assert not failures.has_any(heartbeat.VITAL_LOOPS, now=NOW)
    failures.record("rules thermal", "the store is away", now=NOW)
    assert failures.has_any(heartbeat.VITAL_LOOPS, now=NOW)
    failures.clear("rules thermal")
    assert not failures.has_any(heartbeat.VITAL_LOOPS, now=NOW)


def test_recent_failures_are_limited_have_a_start_and_expire() -> None:
    failures = recent_failures.RecentFailures()
    failures.record("samples", "no room", now=NOW)
    failures.record("samples", "no room", now=NOW + timedelta(minutes=1))
    assert [each.since for each in failures.current(NOW + timedelta(minutes=2))] == [NOW]
    assert failures.current(NOW + timedelta(minutes=4)) == []
    for number in range(200):
        failures.record(f"loop {number}", "x", now=NOW)
    assert len(failures.current(NOW)) == recent_failures.MAX_FAILURES
