"""Invalid and hostile requests of agents, proxies and strangers."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.web.pushed import event
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.kit import logs
from watchkeeper.model import silences
from watchkeeper.rules import templates
from watchkeeper.web.auth import auth
from watchkeeper.web.fleet import fleet_api
from watchkeeper.web.prometheus import explore_api

SECRET = "s" * 40
TOKENS = auth.Auth((auth.Token("ann", auth.Role.ADMIN, hashlib.sha256(SECRET.encode()).digest()),))


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        yield running


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": ""}, "id is empty"),
        ({"text": "x" * 20_000}, "text has 20,000 characters, the limit is 16,384"),
        ({"place": {"cluster": "main", "node": "n1\nINC-9  critical"}}, "node contains a control character"),
        ({"place": {"cluster": "main", "node": ""}}, "place.node is empty"),
    ],
)
def test_an_event_that_would_break_a_table_or_a_page_is_refused(
    site: Site, change: dict[str, Any], problem: str
) -> None:
    answer = site.ask("/api/events", method="POST", body=[event(1) | change])
    assert answer.status == 400
    assert problem in answer.json["error"]
    assert site.ask("/api/events", method="POST", body=[event(1)]).status == 200


def test_pushes_that_never_finish_do_not_block_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_api, "MAX_PUSHES", 64)
    lines = ["POST /api/events HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Content-Length: 1000"]
    head = "\r\n".join([*lines, "", "["]).encode()
    with contextlib.ExitStack() as half_open:
        for _ in range(fleet_api.MAX_PUSHES + 1):
            stranger = half_open.enter_context(socket.create_connection(("127.0.0.1", site.port)))
            stranger.sendall(head)
        assert site.ask("/api/events", method="POST", body=[event(1)]).status == 200


@pytest.mark.parametrize(
    "cookie", ["ann.\u00b2\u00b2.x", "ann.99999999999.\u00e9", "ann." + "9" * 5000 + ".x", "..", ""]
)
def test_a_forged_cookie_is_a_401(cookie: str) -> None:
    with serving(SmallHub(), TOKENS) as site:
        sent = {"Cookie": f"{auth.COOKIE}={cookie}".encode().decode("latin-1")}
        assert site.ask("/api/status", headers=sent).status == 401


@pytest.mark.parametrize("path", ["/assets/%00", "/assets/" + "a" * 5000, "/assets/..%2f..%2fapp.py", "/assets/."])
def test_an_impossible_asset_name_is_not_found(site: Site, path: str) -> None:
    assert site.ask(path).status == 404


@pytest.mark.parametrize("limit", ["%C2%B2", "0", "-1", "9" * 5000, "1001"])
def test_a_limit_out_of_range_is_refused_with_both_bounds(site: Site, limit: str) -> None:
    answer = site.ask(f"/api/incidents?limit={limit}")
    assert answer.status == 400
    assert "1 to 1000" in answer.json["error"]


def test_another_sites_page_cannot_sign_users_out(site: Site) -> None:
    foreign = {"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    assert site.ask("/api/logout", method="POST", headers=foreign).status == 403


def test_an_expected_error_is_logged_without_a_traceback() -> None:
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "A loop failed", (), exc_info=None)
    record.exc_info = False  # type: ignore[assignment]  # what `exc_info=not known` leaves behind
    assert logs.TextFormat().format(record).endswith("error   A loop failed")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("read", "text"),
    [
        (explore_api.read_cursor, "a" * 65_000 + "!{"),
        (explore_api.read_cursor, "a" * 65_000 + "!"),
        (explore_api.read_cursor, "x{" + "a" * 65_000 + '! "'),
        (templates.parse_template, "{{" * 120_000),
        (silences.parse_matcher, "a=" + " " * 60_000 + "x"),
    ],
)
def test_a_text_built_to_be_slow_is_parsed_fast(read: Callable[[str], object], text: str) -> None:
    with contextlib.suppress(templates.TemplateError, ValueError):
        read(text)
