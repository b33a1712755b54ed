"""The link from a job to its run in an experiment tracker: a real hub reads a real monitor, and a person clicks."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests import servers
from tests.browser.conftest import PATIENCE_SECONDS
from tests.support.running_product import WATCHKEEPER, await_that
from watchkeeper.instrument.exports import Exports
from watchkeeper.instrument.mirrors import Run
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.training import TrainingMonitor

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]


class Tracker:
    """Takes numbers and keeps none; only the address of its run matters here."""

    def __init__(self, url: str) -> None:
        self.run = Run("tracker", "run-7", url)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Nothing is done with them."""


class RunPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = b"<title>run-7</title><h1>run-7 of the tracker</h1>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """A test says nothing."""


@pytest.fixture(scope="module")
def tracker_url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), RunPage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/#/experiments/1/runs/run-7"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def hub_url(tmp_path_factory: pytest.TempPathFactory, tracker_url: str) -> Iterator[str]:
    """A hub that reads two training programs: one with a run in a tracker, one that gives something else for it."""
    servers.require("chromium")
    folder, port = tmp_path_factory.mktemp("hub"), servers.free_port()
    with contextlib.ExitStack() as stack:
        programs = {"linked": tracker_url, "tricked": "javascript:document.title='run by a label'"}
        targets = [_train(stack, name, url) for name, url in programs.items()]
        (folder / "targets.json").write_text(json.dumps([{"targets": targets, "labels": {"job": "training"}}]))
        (folder / "hub.toml").write_text(f'[fleet]\nsd_files = ["{folder}/targets.json"]\nscrape_interval = "1s"\n')
        line = [*WATCHKEEPER, "hub", "--config", str(folder / "hub.toml"), "--port", str(port)]
        line += ["--data", str(folder / "kept")]
        url = f"http://127.0.0.1:{port}"
        stack.enter_context(servers.running(line, ready_url=f"{url}/-/ready", log=folder / "hub.log"))
        await_that(lambda: {"linked", "tricked"} <= _jobs(url), within_seconds=PATIENCE_SECONDS)
        yield url


def _train(stack: contextlib.ExitStack, name: str, url: str) -> str:
    port = servers.free_port()
    made = TrainingMonitor(name, Exports(port=port), mirrors=[Tracker(url)], place=Placement(0, 1))
    stack.enter_context(made)
    made.step(loss=1.0)
    return f"127.0.0.1:{port}"


def _jobs(url: str) -> set[str]:
    with urllib.request.urlopen(f"{url}/api/jobs", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return {job["name"] for job in found["jobs"]}


def test_the_run_of_a_job_opens_in_a_page_that_knows_nothing_of_ours(
    page: Page,
    hub_url: str,
    tracker_url: str,
) -> None:
    page.goto(f"{hub_url}/jobs/linked")
    link = page.get_by_test_id("run-link")
    expect(link).to_have_attribute("href", tracker_url)
    with page.context.expect_page() as opened:
        link.click()
    run = opened.value
    expect(run).to_have_title("run-7")
    expect(run).to_have_url(tracker_url)
    assert run.evaluate("[window.opener, document.referrer]") == [None, ""]
    expect(page).to_have_url(f"{hub_url}/jobs/linked")
    run.close()


def test_a_run_that_is_no_web_address_is_no_link(page: Page, hub_url: str) -> None:
    page.goto(f"{hub_url}/jobs/tricked")
    expect(page.get_by_test_id("job-page")).to_contain_text("no link to an experiment tracker")
    expect(page.get_by_test_id("run-link")).to_have_count(0)
