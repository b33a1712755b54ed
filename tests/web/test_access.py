"""Every route with every role, and the checks against pages of other sites."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.web.tokens import SECRETS, TOKENS
from tests.web.kept_services import CannedSimulator
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.errors import SettingsError, StartRefused
from watchkeeper.web.app import create_app
from watchkeeper.web.auth import auth
from watchkeeper.web.auth.auth import ROLES_WITH_ACCESS, Auth, Role
from watchkeeper.web.auth.auth_reload import AuthFiles

NOW = datetime(2026, 1, 31, 9, tzinfo=UTC)
# What the gate says; an endpoint itself never answers with these.
TURNED_AWAY = {401, 403}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Site]:
    with serving(SmallHub(simulator=CannedSimulator()), TOKENS) as site:
        yield site


@pytest.fixture(scope="module")
def local() -> Iterator[Site]:
    with serving(SmallHub()) as site:
        yield site


def all_rows() -> list[tuple[str, str, Role | None]]:
    table = create_app(SmallHub().services, Auth()).state.endpoints
    return [(method, row.path, row.role) for row in table for method in row.methods]


CROSS_SITE = (
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
    {"Origin": "https://elsewhere.example"},
    {"Origin": "null"},
)


@pytest.mark.parametrize(("method", "path", "role"), all_rows())
def test_a_page_of_another_site_cannot_use_any_route(local: Site, method: str, path: str, role: Role | None) -> None:
    filled = re.sub(r"\{[^}]*\}", "x", path)
    form = {"Content-Type": "application/x-www-form-urlencoded"} if method == "POST" else {}
    for headers in CROSS_SITE if role is not None else ():
        status = local.ask(filled, method=method, body="query=1" if form else None, headers=headers | form).status
        assert status == 403, f"{method} {path} with {headers}"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"User-Agent": "Grafana/11.2.0", "X-Grafana-Org-Id": "1", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_programs_and_own_pages_can_query_with_and_without_a_form(local: Site, headers: dict[str, str]) -> None:
    assert local.ask("/api/v1/query?query=up", headers=headers).status == 200
    form = {"Content-Type": "application/x-www-form-urlencoded"} | headers
    assert local.ask("/api/v1/query", method="POST", body="query=up", headers=form).status == 200


def test_a_link_of_another_site_can_be_followed_but_not_posted(local: Site) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert local.ask("/api/incidents", headers=link).status == 200
    form = {"Content-Type": "application/x-www-form-urlencoded"} | link
    assert local.ask("/api/v1/query", method="POST", body="query=up", headers=form).status == 403


def test_a_bearer_token_may_be_sent_by_a_page_that_has_it(guarded: Site) -> None:
    sent = {"Authorization": f"Bearer {SECRETS['viewer']}", "Origin": "https://elsewhere.example"}
    assert guarded.ask("/api/v1/query?query=up", headers=sent).status == 200


@pytest.mark.parametrize(("method", "path", "role"), all_rows())
def test_a_route_allows_only_its_roles(guarded: Site, method: str, path: str, role: Role | None) -> None:
    filled = re.sub(r"\{[^}]*\}", "x", path)
    body = {} if method != "GET" else None
    if role is None:
        if filled != "/api/login":
            assert guarded.ask(filled, method=method, body=body).status not in TURNED_AWAY
        return
    assert guarded.ask(filled, method=method, body=body).status == 401
    for caller, secret in SECRETS.items():
        status = guarded.ask(filled, method=method, body=body, headers={"Authorization": f"Bearer {secret}"}).status
        assert (status in TURNED_AWAY) == (caller not in ROLES_WITH_ACCESS[role]), f"{caller} at {filled}: {status}"


def test_an_agent_may_only_push_and_fetch_its_orders() -> None:
    opened = {(method, path) for method, path, role in all_rows() if role and Role.AGENT in ROLES_WITH_ACCESS[role]}
    assert opened == {
        *(("POST", path) for path in ("/api/events", "/api/nodes", "/api/v1/write", "/api/orders/{id}/receipt")),
        # Alertmanager's webhook, for a token that is not bound to a node.
        ("POST", "/api/alertmanager"),
        ("GET", "/api/orders"),
        ("POST", "/api/fabric"),
    }


def test_every_http_route_of_the_application_is_in_the_table() -> None:
    app = create_app(SmallHub().services, Auth())
    assert {route.path for route in app.routes} == {row.path for row in app.state.endpoints} | {"/api/live"}


def test_a_wrong_token_is_401_and_a_missing_role_is_403(guarded: Site) -> None:
    wrong = guarded.ask("/api/status", headers={"Authorization": "Bearer unknown"})
    assert (wrong.status, wrong.json["ok"], wrong.json["status"]) == (401, False, 401)
    low = guarded.ask(
        "/api/incidents/INC-1/acknowledge",
        method="POST",
        body={},
        headers={"Authorization": f"Bearer {SECRETS[Role.VIEWER]}"},
    )
    assert low.json["error"] == "viewer has the role viewer; this needs the role operator"


def test_signing_in_sets_a_cookie_that_scripts_cannot_read(guarded: Site) -> None:
    page = {"Origin": guarded.url, "Host": f"127.0.0.1:{guarded.port}"}
    assert guarded.ask("/api/login", method="POST", body={"token": "wrong"}, headers=page).status == 401
    reply = guarded.ask("/api/login", method="POST", body={"token": SECRETS[Role.VIEWER]}, headers=page)
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    whoami = guarded.ask("/api/whoami", headers={"Cookie": cookie.split(";")[0]})
    assert whoami.json == {"ok": True, "name": "viewer", "role": "viewer", "needs_sign_in": True}


def test_a_session_ends_with_its_time_and_with_its_token() -> None:
    token = TOKENS.tokens[0]
    cookies = {auth.COOKIE: TOKENS.make_session(token, now=NOW)}
    late = NOW + auth.SESSION_LIFETIME + timedelta(seconds=1)
    assert TOKENS.caller({}, cookies, now=NOW) is not None
    assert TOKENS.caller({}, cookies, now=late) is None
    assert Auth(TOKENS.tokens[1:]).caller({}, cookies, now=NOW) is None
    forged = {auth.COOKIE: cookies[auth.COOKIE].replace("viewer", "admin")}
    assert TOKENS.caller({}, forged, now=NOW) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9480", "127.0.0.1.evil.example", "[::1", ""])
def test_a_rebound_name_is_refused_without_tokens(local: Site, host: str) -> None:
    assert local.ask("/api/status", headers={"Host": host}).status == 403


@pytest.mark.parametrize("host", ["localhost:9480", "127.0.0.1", "[::1]:9480", "LOCALHOST"])
def test_loopback_names_are_accepted_without_tokens(local: Site, host: str) -> None:
    assert local.ask("/api/status", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Content-Type": "application/json"},
        {"Origin": "null", "Content-Type": "application/json"},
        {"Sec-Fetch-Site": "cross-site", "Content-Type": "application/json"},
        {"Sec-Fetch-Site": "same-site", "Content-Type": "application/json"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
def test_another_sites_page_cannot_change_anything(local: Site, headers: dict[str, str]) -> None:
    assert local.ask("/api/events", method="POST", body="[]", headers=headers).status == 403
    assert local.ask("/api/events", method="POST", body=[]).status == 200


@pytest.mark.parametrize(
    ("host", "allowed"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_only_loopback_may_be_listened_on_without_tokens(host: str, allowed: bool) -> None:
    auth.check_listen(host, TOKENS)
    if allowed:
        auth.check_listen(host, Auth())
    else:
        with pytest.raises(StartRefused, match="everyone who can connect to this address is admin"):
            auth.check_listen(host, Auth())


def test_a_token_file_is_read_with_plain_and_hashed_tokens(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    digest = hashlib.sha256(b"secret").hexdigest()
    path.write_text(f"# people\nann admin {'a' * 32}\n\nnode-1 agent sha256:{digest}\n")
    tokens = auth.load_tokens(path)
    assert [(token.name, token.role) for token in tokens.tokens] == [("ann", Role.ADMIN), ("node-1", Role.AGENT)]
    assert tokens.find_token("secret") == tokens.tokens[1]


@pytest.mark.parametrize(("mode", "is_said"), [(0o644, True), (0o640, False)])
def test_a_token_file_readable_by_other_users_is_a_warning(
    tmp_path: Path, mode: int, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# people\nann admin {'a' * 32}\nbob viewer sha256:{hashlib.sha256(b'x').hexdigest()}\n")
    path.chmod(mode)
    AuthFiles(tokens_file=path).load()
    assert ("token file is world-readable" in caplog.text) is is_said
    path.write_text(f"bob viewer sha256:{hashlib.sha256(b'x').hexdigest()}\n")
    caplog.clear()
    AuthFiles(tokens_file=path).load()
    assert not caplog.text


def test_an_invalid_token_file_reports_every_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("ann admin short\nbob king x\nonly-two words\n")
    with pytest.raises(SettingsError) as raised:
        auth.load_tokens(path)
    assert [problem.split(":")[0] for problem in raised.value.problems] == ["line 1", "line 2", "line 3"]
    assert "5 characters, at least 32" in str(raised.value)
