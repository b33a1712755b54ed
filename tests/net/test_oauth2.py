"""OAuth 2.0 with client credentials: one token for a whole job, renewed before it expires."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.support.loopback import Answer, Heard, Loopback, reply, serve
from tests.support.scraped import Kept
from watchkeeper.errors import CollectError
from watchkeeper.net.oauth2 import ClientCredentials
from watchkeeper.scrape import prometheus_config
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import Target, build_target
from watchkeeper.scrape.scrape import ScrapeSettings, TargetHealth, TargetLoop


def granted(token: str = "t1", **more: object) -> bytes:
    return reply(json.dumps({"access_token": token, "token_type": "Bearer", **more}))


def credentials(server: Loopback, **more: object) -> ClientCredentials:
    options: dict[str, object] = {"client_id": "wk", "client_secret": "s3cret", **more}
    return ClientCredentials(f"{server.origin}/token", **options)  # type: ignore[arg-type]


def run(answer: Answer, story: Callable[[Loopback], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with serve(answer) as server:
            await story(server)

    asyncio.run(whole())


def test_a_token_is_requested_once_and_used_until_it_expires() -> None:
    async def story(server: Loopback) -> None:
        source = credentials(server, scopes=("read", "write"), parameters=(("audience", "gpu"),))
        headers = await asyncio.gather(*(source.authorization() for _ in range(20)))
        assert set(headers) == {"Bearer t1"}
        [request] = server.heard
        assert request.headers["authorization"] == f"Basic {base64.b64encode(b'wk:s3cret').decode()}"
        form = {"grant_type": ["client_credentials"], "audience": ["gpu"], "scope": ["read write"]}
        assert parse_qs(request.body.decode()) == form

    run(lambda _: granted(expires_in=3600), story)


def test_a_token_that_expires_within_seconds_is_fetched_for_each_use() -> None:
    async def story(server: Loopback) -> None:
        source = credentials(server)
        assert [await source.authorization() for _ in range(2)] == ["Bearer t1", "Bearer t1"]
        assert len(server.heard) == 2

    run(lambda _: granted(expires_in=5), story)


def test_a_server_that_reads_the_form_only_gets_the_credentials_there() -> None:
    def answer(request: Heard) -> bytes:
        return reply(status=401) if "authorization" in request.headers else granted()

    async def story(server: Loopback) -> None:
        assert await credentials(server).authorization() == "Bearer t1"
        assert parse_qs(server.heard[-1].body.decode())["client_secret"] == ["s3cret"]

    run(answer, story)


@pytest.mark.parametrize(
    "answer",
    [reply(status=500), reply("no"), reply("{}"), reply('{"access_token": "a\\nb"}'), reply("[" * 60_000)],
)
def test_no_token_is_an_error_that_keeps_the_secret(answer: bytes) -> None:
    async def story(server: Loopback) -> None:
        with pytest.raises(CollectError, match="/token: the token server") as caught:
            await credentials(server).authorization()
        assert "s3cret" not in str(caught.value)
        assert "s3cret" not in repr(credentials(server))

    run(lambda _: answer, story)


def test_a_server_that_issues_no_token_is_not_called_for_every_target() -> None:
    async def story(server: Loopback) -> None:
        source = credentials(server)
        calls = (source.authorization() for _ in range(20))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, CollectError) for result in results)
        assert len(server.heard) == 1

    run(lambda _: reply(status=500), story)


def test_a_job_with_oauth2_is_up_and_one_without_a_token_is_down(tmp_path: Path) -> None:
    def answer(request: Heard) -> bytes:
        if request.path == "/token":
            return granted(expires_in=60)
        return reply("a 1\n") if request.headers.get("authorization") == "Bearer t1" else reply(status=401)

    async def story(server: Loopback) -> None:
        (tmp_path / "secret").write_text("s3cret\n")
        file = tmp_path / "prometheus.yml"
        access = f"oauth2: {{token_url: '{server.origin}/token', client_id: wk, client_secret_file: secret}}"
        file.write_text(f"scrape_configs: [{{job_name: j, {access}}}, {{job_name: k}}]\n")
        config = prometheus_config.load(file)
        assert config.problems == ()
        assert config == prometheus_config.load(file)
        for job, health in zip(config.jobs, (TargetHealth.UP, TargetHealth.DOWN), strict=True):
            target = build_target(server.address, {}, job, node=None, cluster="c")
            assert isinstance(target, Target)
            loop = TargetLoop(target, ScrapeSettings(), sink=Kept(), inventory=ScrapedInventory())
            assert (await loop.scrape(1000)).health is health
            await loop.close(2000)

    run(answer, story)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("oauth2: {client_id: a}", "oauth2 needs a `token_url`"),
        ("oauth2: {token_url: 'http://t'}", "oauth2 needs a `client_id`"),
        ("oauth2: {token_url: ftp, client_id: a}", "http or https `token_url`"),
        ("oauth2: {token_url: 'http://t', client_id: a, colour: red}", "`colour` is not supported"),
    ],
)
def test_problems_of_oauth2_are_reported(tmp_path: Path, written: str, problem: str) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(f"scrape_configs: [{{job_name: j, {written}}}]\n")
    [message] = prometheus_config.load(file).problems
    assert problem in message
