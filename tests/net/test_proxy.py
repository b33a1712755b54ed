"""A proxy for targets: plain requests are relayed, TLS goes through a tunnel, and some hosts are called directly."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import pytest

from tests.net.tunnels import tunnelling
from tests.support.loopback import Heard, reply, serve
from watchkeeper.errors import CollectError
from watchkeeper.net.access import Access
from watchkeeper.net.http import Connection, HttpRequest, HttpResponse
from watchkeeper.scrape import prometheus_config


async def send(url: str, access: Access, times: int = 1) -> HttpResponse:
    connection = Connection(access=access, timeout_seconds=60.0)
    try:
        for _ in range(times):
            response = await connection.send(HttpRequest(url))
        return response
    finally:
        await connection.aclose()


def test_a_plain_request_is_relayed_in_full_with_the_proxys_password() -> None:
    async def story() -> None:
        async with serve(lambda request: reply(request.path)) as proxy:
            way = f"http://user:p%40ss@{proxy.address}"
            response = await send("http://gpu.example:9400/metrics?x=1", Access(proxy_url=way), times=2)
            assert response.body == b"http://gpu.example:9400/metrics?x=1"
            assert proxy.connections == 1
            [_, request] = proxy.heard
            assert request.headers["host"] == "gpu.example:9400"
            assert request.headers["proxy-authorization"] == f"Basic {base64.b64encode(b'user:p@ss').decode()}"

    asyncio.run(story())


def test_tls_goes_through_a_tunnel_and_the_proxy_sees_no_request(certificate: tuple[Path, Path]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)

    async def story() -> None:
        async with (
            serve(lambda request: reply(request.path * 50_000), tls=tls) as server,
            tunnelling() as (way, tunnel_requests),
        ):
            access = Access(proxy_url=way, ca_file=str(certificate[0]), server_name="n1.example")
            response = await send(f"{server.origin}/m", access, times=2)
            assert response.body == b"/m" * 50_000
            assert tunnel_requests == [f"CONNECT {server.address} HTTP/1.1".encode()]

    asyncio.run(story())


def test_a_proxy_that_refuses_a_tunnel_is_named() -> None:
    async def story() -> None:
        async with serve(lambda _: reply(status=407)) as proxy:
            with pytest.raises(
                CollectError, match=r"the proxy 127\.0\.0\.1:\d+ answered 407 to CONNECT gpu.example:443"
            ):
                await send("https://gpu.example/", Access(proxy_url=f"http://{proxy.address}"))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("host", "is_direct"),
    [
        ("n1.lab.example", True),
        ("lab.example", True),
        ("n1.example", False),
        ("10.7.3.1", True),
        ("10.8.3.1", False),
        ("::1", True),
    ],
)
def test_no_proxy_names_domains_addresses_and_networks(host: str, is_direct: bool) -> None:
    access = Access(proxy_url="http://p:3128", no_proxy=(".lab.example", "10.7.0.0/16", "::1"))
    assert access.proxy_for(host) == ("" if is_direct else "http://p:3128")
    assert Access(proxy_url="http://p:3128", no_proxy=("*",)).proxy_for(host) == ""


def test_a_job_sets_its_proxy_and_its_exceptions(tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    jobs = "{job_name: a, proxy_url: 'http://p:3128', no_proxy: 'x.example, 10.0.0.0/8'}, {job_name: b, proxy_url: p}"
    file.write_text(f"scrape_configs: [{jobs}]\n")
    config = prometheus_config.load(file)
    [job] = config.jobs
    assert (job.access.proxy_url, job.access.no_proxy) == ("http://p:3128", ("x.example", "10.0.0.0/8"))
    assert "job b skipped: proxy_url must be an http URL, found 'p'" in config.problems[0]


def test_an_origin_behind_no_proxy_is_reached_directly() -> None:
    async def story() -> None:
        async with serve(lambda request: reply(request.path)) as server:
            access = Access(proxy_url="http://127.0.0.1:1", no_proxy=("127.0.0.0/8",))
            assert (await send(f"{server.origin}/direct", access)).body == b"/direct"

    asyncio.run(story())


def test_a_relayed_request_carries_no_more_than_it_should() -> None:
    requests: list[Heard] = []

    async def story() -> None:
        async with serve(lambda request: requests.append(request) or reply("ok")) as proxy:  # type: ignore[func-returns-value]
            await send("http://gpu.example/", Access(proxy_url=f"http://{proxy.address}"))

    asyncio.run(story())
    assert "proxy-authorization" not in requests[0].headers
