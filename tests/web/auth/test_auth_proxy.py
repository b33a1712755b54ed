"""A trusted proxy in front of the hub: only its headers set the user, the address and the scheme."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.config import settings
from watchkeeper.web.auth import auth, auth_reload, proxy
from watchkeeper.web.auth.auth import Role, User

HEADER = "X-Forwarded-User"
PROXY = proxy.from_settings(["127.0.0.1", "10.0.0.0/8"], HEADER)


def behind(peer: str, *headers: tuple[str, str], trusted: proxy.Proxy = PROXY) -> dict[str, Any]:
    pairs = [(name.lower().encode(), text.encode()) for name, text in headers]
    scope: dict[str, Any] = {"type": "http", "scheme": "http", "client": (peer, 1), "headers": pairs}
    trusted.apply_headers(scope)
    return scope


def test_only_a_listed_proxy_is_trusted() -> None:
    headers = ((HEADER, "ann"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "192.0.2.7"))
    believed, untrusted = behind("10.9.8.7", *headers), behind("192.0.2.1", *headers)
    assert (believed[proxy.PROXY_USER_KEY], believed["scheme"], believed["client"][0]) == ("ann", "https", "192.0.2.7")
    assert (untrusted.get(proxy.PROXY_USER_KEY), untrusted["scheme"], untrusted["client"][0]) == (
        None,
        "http",
        "192.0.2.1",
    )
    assert behind("::ffff:10.0.0.1", *headers)["scheme"] == "https"


def test_the_client_is_the_last_untrusted_address_and_two_names_are_ignored() -> None:
    chain = ("X-Forwarded-For", "203.0.113.9, 192.0.2.7, 10.1.1.1")
    assert behind("10.0.0.1", chain)["client"][0] == "192.0.2.7"
    assert behind("10.0.0.1", ("X-Forwarded-For", "rubbish"))["client"][0] == "10.0.0.1"
    assert proxy.PROXY_USER_KEY not in behind("10.0.0.1", (HEADER, "ann"), (HEADER, "root"))


@pytest.fixture(params=[None, Role.VIEWER])
def site(request: pytest.FixtureRequest) -> Iterator[tuple[Site, Role | None]]:
    access = auth.Auth(users=(User("ann", Role.OPERATOR),), unknown_user_role=request.param, requires_login=True)
    with serving(SmallHub(), auth_reload.AuthFiles(access, PROXY)) as running:
        yield running, request.param


def test_a_listed_user_gets_the_role_of_the_file_and_another_that_of_the_settings_or_none(
    site: tuple[Site, Role | None],
) -> None:
    running, newcomer = site
    assert running.ask("/api/whoami", headers={HEADER: "ann"}).json["role"] == "operator"
    other = running.ask("/api/whoami", headers={HEADER: "bob"})
    assert other.status == (200 if newcomer else 401)
    assert running.ask("/api/whoami").status == 401
    # oauth2-proxy can pass on the identity provider's own token, which is none of ours.
    passed = {HEADER: "ann", "Authorization": "Bearer eyJhbGciOi"}
    assert running.ask("/api/whoami", headers=passed).json["name"] == "ann"


def test_a_proxy_user_may_change_something_only_from_the_same_origin(site: tuple[Site, Role | None]) -> None:
    running, _ = site
    foreign = {HEADER: "ann", "Origin": "https://evil.example"}
    assert running.ask("/api/silences", method="POST", body={}, headers=foreign).status == 403
    own = {HEADER: "ann", "Origin": running.url}
    assert running.ask("/api/silences", method="POST", body={}, headers=own).status not in (401, 403)


def test_behind_tls_of_the_proxy_the_cookie_is_for_tls_only() -> None:
    secret = "s" * 40
    token = auth.Token("ann", Role.VIEWER, hashlib.sha256(secret.encode()).digest())
    with serving(SmallHub(), auth_reload.AuthFiles(auth.Auth((token,)), PROXY)) as running:
        page = {"Origin": running.url, "X-Forwarded-Proto": "https"}
        reply = running.ask("/api/login", method="POST", body={"token": secret}, headers=page)
        assert "Secure" in reply.headers["set-cookie"]


def test_a_hub_with_a_proxy_alone_is_not_open() -> None:
    chosen = settings.HubSettings(trusted_proxies=("10.0.0.5",), proxy_user_header=HEADER)
    assert not auth_reload.from_settings(chosen).access.is_open
    assert auth_reload.from_settings(settings.HubSettings()).access.is_open
    with pytest.raises(ValueError, match="requires the proxy's address"):
        settings.HubSettings(proxy_user_header=HEADER)
    with pytest.raises(ValueError, match="not an address or network"):
        settings.HubSettings(trusted_proxies=("proxy.example",))
