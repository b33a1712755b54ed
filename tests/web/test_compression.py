"""Long responses are compressed for clients that accept gzip; short ones and streams are not."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator

import pytest
from starlette.responses import Response, StreamingResponse

from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.net import compression
from watchkeeper.web import endpoint

GZIP = {"Accept-Encoding": "gzip"}
LONG = b"x" * compression.MIN_BYTES


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(SmallHub(racks=8, per_rack=4)) as running:
        yield running


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/query?time=100&query=DCGM_FI_DEV_GPU_TEMP",
        "/api/openapi.json",
    ],
)
def test_a_long_response_is_compressed_if_the_client_accepts_gzip(site: Site, path: str) -> None:
    plain, small = site.ask(path), site.ask(path, headers=GZIP)
    assert plain.status == small.status == 200
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert gzip.decompress(small.body) == plain.body
    assert len(small.body) < len(plain.body) / 3
    assert plain.headers["vary"] == small.headers["vary"] == "Accept-Encoding"
    assert small.headers["content-length"] == str(len(small.body))


def test_short_responses_and_errors_are_not_compressed(site: Site) -> None:
    for path in ("/api/v1/status/buildinfo", "/api/v1/query?query=", "/api/whoami"):
        assert "content-encoding" not in site.ask(path, headers=GZIP).headers


def test_federate_is_compressed(site: Site) -> None:
    reply = site.ask("/federate?match[]=DCGM_FI_DEV_GPU_TEMP", headers=GZIP)
    assert reply.headers["content-encoding"] == "gzip"
    assert gzip.decompress(reply.body).startswith(b"# TYPE ")


@pytest.mark.parametrize(
    ("accepted", "is_taken"),
    [
        *(("gzip", True), ("gzip, deflate, br", True), ("br;q=1.0, GZIP;q=0.8", True), ("gzip ; q=0.001", True)),
        *(("", False), ("identity", False), ("gzip;q=0", False), ("br, gzip; q=0.000", False), ("x-gzipped", False)),
    ],
)
def test_accept_encoding_is_parsed(accepted: str, is_taken: bool) -> None:
    assert compression.accepts_gzip(accepted) is is_taken


@pytest.mark.parametrize(
    "answer",
    [
        StreamingResponse(iter([LONG]), media_type="text/plain"),
        Response(LONG, media_type="application/gzip"),
        Response(LONG, media_type="text/plain", headers={"Content-Encoding": "br"}),
    ],
)
def test_streams_and_compressed_responses_are_not_changed(answer: Response) -> None:
    before = list(answer.raw_headers)
    assert asyncio.run(endpoint.compress_response(answer, "gzip")).raw_headers == before
