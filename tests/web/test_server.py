"""Health, pages, headers, and ports in use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.errors import StartRefused
from watchkeeper.web import pages, server


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(SmallHub()) as running:
        yield running


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>console</title>")
    (tmp_path / "assets" / "index-abc.js").write_text("let x = 1;" * 100)
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(pages, "STATIC", tmp_path)
    return tmp_path


def test_healthy_is_not_ready(site: Site) -> None:
    assert site.ask("/-/ready").status == 200
    site.hub.not_ready_reason = "12 of 40 targets were never scraped"
    reply = site.ask("/-/ready")
    assert (reply.status, reply.body) == (503, b"Not ready: 12 of 40 targets were never scraped\n")
    assert site.ask("/-/healthy").status == 200


def test_own_metrics_are_a_prometheus_page(site: Site) -> None:
    reply = site.ask("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"watchkeeper_web_viewers 0" in reply.body


@pytest.mark.parametrize("path", ["/", "/api/status", "/api/nothing", "/assets/nothing.js", "/metrics"])
def test_every_answer_carries_the_security_headers(site: Site, path: str) -> None:
    headers = site.ask(path).headers
    policy = headers["content-security-policy"]
    assert "unsafe-inline" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/incidents", "/incidents/INC-1", "/gpu/GPU-1"])
def test_console_paths_serve_the_page_without_caching(built: Path, site: Site, path: str) -> None:
    reply = site.ask(path)
    assert (reply.status, b"console" in reply.body) == (200, True)
    assert reply.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/api/status", "/api/incidents", "/metrics", "/api/v1/query?query=up"])
def test_answers_are_stored_by_no_cache(site: Site, path: str) -> None:
    assert site.ask(path).headers["cache-control"] == "no-store"


def test_assets_are_cached_for_ever_and_compressed_on_request(built: Path, site: Site) -> None:
    plain = site.ask("/assets/index-abc.js")
    small = site.ask("/assets/index-abc.js", headers={"Accept-Encoding": "gzip"})
    assert "immutable" in plain.headers["cache-control"]
    assert small.headers["content-encoding"] == "gzip"
    assert len(small.body) < len(plain.body)


@pytest.mark.parametrize("path", ["/assets/..%2fsecret", "/assets/%2e%2e/secret", "/assets/../secret", "/secret"])
def test_an_asset_path_cannot_leave_its_folder(built: Path, site: Site, path: str) -> None:
    assert site.ask(path).status == 404


def test_an_unbuilt_console_says_how_to_build_it(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "STATIC", tmp_path)
    reply = site.ask("/")
    assert (reply.status, b"npm --prefix console run build" in reply.body) == (503, True)


def test_a_port_in_use_names_the_process(site: Site) -> None:
    with pytest.raises(StartRefused) as raised:
        server.listen("127.0.0.1", site.port)
    assert f"process {os.getpid()}" in str(raised.value)
    assert "choose another port" in str(raised.value)


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(StartRefused, match="cannot listen"):
        server.listen("192.0.2.1", 0)
