"""The client for threads: proxies, redirects, and what is never told."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import pytest

from tests.net.tunnels import tunnelling
from tests.support.loopback import reply, serve
from tests.support.scripted import Reply, serving
from watchkeeper.net import sync_http
from watchkeeper.net.access import NO_ACCESS, Access


def followed(url: str, method: str = "GET") -> tuple[int, bytes]:
    request = sync_http.Request(method, headers={"Authorization": "Bearer secret"})
    with sync_http.open_with_redirects(url, request, limits=sync_http.HttpLimits(), access=NO_ACCESS) as answer:
        return answer.status, answer.read()


def test_the_proxy_of_the_environment_relays_the_request_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Reply(body=b"relayed")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:p%40ss@"))
        monkeypatch.setenv("no_proxy", "direct.example")
        assert followed("http://hub.example:9480/api?x=1") == (200, b"relayed")
        [request] = proxy.asked
        assert (request.path, request.headers["Host"]) == ("http://hub.example:9480/api?x=1", "hub.example:9480")
        assert request.headers["Proxy-Authorization"] == f"Basic {base64.b64encode(b'user:p@ss').decode()}"


def test_hosts_that_the_environment_exempts_are_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(Reply(body=b"direct")) as server:
        assert followed(server.url) == (200, b"direct")


def test_tls_goes_through_a_tunnel(certificate: tuple[Path, Path]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)

    async def story() -> None:
        async with (
            serve(lambda request: reply(request.path), tls=tls) as server,
            tunnelling() as (way, tunnel_requests),
        ):
            access = Access(proxy_url=way, ca_file=str(certificate[0]), server_name="n1.example")
            client = sync_http.HttpClient(server.origin, access=access)
            response = await asyncio.to_thread(client.send, sync_http.Request("GET", "/m"))
            assert response.body == b"/m"
            assert tunnel_requests == [f"CONNECT {server.address} HTTP/1.1".encode()]

    asyncio.run(story())


def test_a_redirect_to_another_server_is_followed_without_our_credentials() -> None:
    with serving(Reply(body=b"there")) as other:
        target = other.url.replace("127.0.0.1", "localhost")
        with serving(Reply(301, headers={"Location": f"{target}/there"})) as server:
            assert followed(server.url) == (200, b"there")
        assert (other.asked[0].path, "Authorization" in other.asked[0].headers) == ("/there", False)


def test_what_was_posted_is_not_sent_elsewhere() -> None:
    with serving(Reply(307, headers={"Location": "http://127.0.0.1:1/"})) as server:
        assert followed(server.url, "POST")[0] == 307


def test_a_redirect_loop_ends() -> None:
    with serving(Reply(302, headers={"Location": "/again"})) as server:
        assert followed(server.url)[0] == 302
        assert len(server.asked) == sync_http.MAX_REDIRECTS + 1


def test_a_secret_that_is_no_header_is_in_no_message() -> None:
    with serving(Reply()) as server, pytest.raises(sync_http.NoAnswer, match="characters that HTTP does not") as caught:
        sync_http.HttpClient(server.url).send(sync_http.Request("GET", headers={"Authorization": "Bearer sec\nret"}))
    assert "ret" not in str(caught.value)
