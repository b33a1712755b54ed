"""A walk through the whole table of endpoints: every change needs the right role, for every kind of caller."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.web.kept_services import CannedSimulator
from tests.web.pushed import event
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.web.app import create_app
from watchkeeper.web.auth import auth, proxy
from watchkeeper.web.auth.auth import ROLES_WITH_ACCESS, Role
from watchkeeper.web.auth.auth_reload import AuthFiles
from watchkeeper.web.endpoint import Endpoint

SECRETS = {name: f"{name}-".ljust(40, "x") for name in ("viewer", "operator", "admin", "agent", "bound")}


def token(name: str, role: Role, nodes: str | None = None) -> auth.Token:
    return auth.Token(name, role, hashlib.sha256(SECRETS[name].encode()).digest(), nodes)


ACCESS = auth.Auth((*(token(role, role) for role in Role), token("bound", Role.AGENT, "gpu-r01-*")))
# Open on purpose: login and logout, the probes of a load balancer, and the console's own files.
OPEN_TO_ALL = {"/api/login", "/api/logout", "/-/healthy", "/-/ready"}


def table() -> list[Endpoint]:
    endpoints: list[Endpoint] = create_app(SmallHub().services, ACCESS).state.endpoints
    return endpoints


def rows(*, changing: bool) -> list[tuple[str, str, Role]]:
    return [
        (method, row.path, row.role)
        for row in table()
        for method in row.methods
        if row.role is not None and (method not in ("GET", "HEAD")) == changing
    ]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    behind = proxy.Proxy(proxy.from_settings(["127.0.0.1"], None).networks)
    with serving(SmallHub(simulator=CannedSimulator()), AuthFiles(ACCESS, behind)) as running:
        yield running


def filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


def cookie_of(site: Site, name: str) -> dict[str, str]:
    own_token = next(each for each in ACCESS.tokens if each.name == name)
    value = ACCESS.make_session(own_token, now=site.hub.clock.now())
    return {"Cookie": f"{auth.COOKIE}={value}", "Origin": site.url}


def test_what_changes_something_is_guarded_and_what_is_open_is_listed() -> None:
    for row in table():
        if row.role is None:
            shows_the_console = row.methods == ("GET",) and not row.path.startswith(("/api/", "/-/", "/metrics"))
            assert row.path in OPEN_TO_ALL or shows_the_console or row.path == "/api/openapi.json", row.path
        elif set(row.methods) - {"GET", "HEAD"}:
            # Prometheus' own API takes questions by POST as well.
            asks_only = {"GET", "POST"} <= set(row.methods) and row.path.startswith("/api/v1/")
            assert row.changes or asks_only or row.role is Role.AGENT, row.path


@pytest.mark.parametrize(("method", "path", "role"), rows(changing=True))
def test_a_cookie_of_a_lower_or_other_role_may_change_nothing(site: Site, method: str, path: str, role: Role) -> None:
    for name in Role:
        status = site.ask(filled(path), method=method, body={}, headers=cookie_of(site, name)).status
        assert (status in {401, 403}) == (name not in ROLES_WITH_ACCESS[role]), f"{name} at {path}: {status}"


@pytest.mark.parametrize(("method", "path", "role"), rows(changing=True))
def test_an_admins_cookie_from_a_page_of_another_site_is_refused(
    site: Site, method: str, path: str, role: Role
) -> None:
    foreign = cookie_of(site, "admin") | {"Origin": "https://evil.example"}
    status = site.ask(filled(path), method=method, body={}, headers=foreign).status
    assert status == 403, f"{path}: {status}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/events", [event(1) | {"place": {"cluster": "main", "node": "gpu-r02-01"}}]),
        ("/api/nodes", {"cluster": "main", "node": "gpu-r02-01", "gpus": []}),
        ("/api/alertmanager", {"alerts": []}),
        ("/api/fabric", {}),
        ("/api/v1/write", b""),
    ],
)
def test_an_agent_bound_to_nodes_may_not_report_for_others(site: Site, path: str, body: object) -> None:
    bound = {"Authorization": f"Bearer {SECRETS['bound']}"}
    reply = site.ask(path, method="POST", body=body, headers=bound)
    assert reply.status == 403, reply.body


def test_headers_of_an_unlisted_proxy_are_ignored(site: Site) -> None:
    forged = {"X-Forwarded-User": "ann", "X-Auth-Request-User": "ann"}
    assert site.ask("/api/status", headers=forged).status == 401


def test_a_session_of_a_removed_role_is_looked_up_anew() -> None:
    now = datetime(2026, 1, 31, 9, tzinfo=UTC)
    person = auth.User("ann", Role.ADMIN, "$argon2id$x")
    before = auth.Auth(users=(person,))
    cookies = {auth.COOKIE: before.make_session(person, now=now)}
    lowered = auth.Auth(users=(auth.User("ann", Role.VIEWER, "$argon2id$x"),), key=before.key)
    caller = lowered.caller({}, cookies, now=now)
    assert caller is not None
    assert caller.role is Role.VIEWER
