"""People are told: over HTTP to receivers that hang, fail and count, through kill -9, and over a real Alertmanager."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support.running_product import WATCHKEEPER, Product, await_that

Answer = Callable[[int], int]


class Hook:
    """A receiver that keeps what it is sent; `answer` gets the number of the call and gives its status, 0 to hang."""

    def __init__(self, answer: Answer = lambda _: 200) -> None:
        self.got: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.calls = 0
        self._answer, self._let_go = answer, threading.Event()
        hook = self

        class Receiving(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiving)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        self.calls += 1
        status = self._answer(self.calls)
        if status == 0:
            self._let_go.wait(60)
            return
        if status == 200:
            self.got.append(body)
            self.keys.append(request.headers["Idempotency-Key"])
        request.send_response(status)
        request.end_headers()

    def notices(self) -> list[str]:
        return [notice["id"] for body in self.got for notice in body["notices"]]

    def close(self) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def hook(stack: ExitStack, answer: Answer = lambda _: 200) -> Hook:
    made = Hook(answer)
    stack.callback(made.close)
    return made


def start_hub(stack: ExitStack, folder: Path, notify: str, *, port: int | None = None) -> Product:
    port = port or servers.free_port()
    (folder / "hub.toml").write_text(f'[hub]\ndata = "kept"\n\n[notify]\n{notify}\n')
    line = [*WATCHKEEPER, "hub", "--config", str(folder / "hub.toml"), "--port", str(port)]
    url, log = f"http://127.0.0.1:{port}", folder / f"hub-{time.monotonic_ns()}.log"
    server = stack.enter_context(servers.running(line, ready_url=f"{url}/-/ready", log=log))
    return Product(url, server, log)


def receivers(folder: Path, **hooks: Hook) -> str:
    """Settings in which every receiver is told of everything without a wait."""
    made = "\n".join(f'[[receivers]]\nname = "{name}"\nwebhook = "{hook.url}"' for name, hook in hooks.items())
    names = ", ".join(f'"{name}"' for name in hooks)
    (folder / "notify.toml").write_text(f'{made}\n\n[[routes]]\nreceivers = [{names}]\nwait = "0s"\n')
    return 'via = "receivers"\nroutes = "notify.toml"\nconsole_url = "https://watch.example"'


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def metrics(product: Product) -> str:
    with urllib.request.urlopen(product.url + "/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def push_xid(product: Product, code: int, gpu: str = "GPU-1", *, node: str = "n1") -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    place = {"cluster": "main", "node": node, "gpu": gpu}
    event = {"id": f"main/{node}/b/kmsg/{code}{gpu}", "kind": "xid", "code": code, "place": place, "at": at}
    post(product.url + "/api/events", [event | {"text": f"NVRM: Xid {code}"}])


@pytest.mark.slow
def test_a_receiver_that_hangs_or_fails_delays_nobody_else(stack: ExitStack, tmp_path: Path) -> None:
    good, bad, hung = hook(stack), hook(stack, lambda call: 200 if call > 1 else 500), hook(stack, lambda _: 0)
    hub = start_hub(stack, tmp_path, receivers(tmp_path, good=good, bad=bad, hung=hung))
    push_xid(hub, 79)
    await_that(lambda: good.notices() == ["INC-1/good/opened/1"])
    notice = good.got[0]["notices"][0]
    assert notice["incident"]["cause"] == "gpu_fell_off_bus"
    assert notice["url"] == "https://watch.example/incidents/INC-1"
    await_that(lambda: bad.notices() == ["INC-1/bad/opened/1"])
    answer = hub.command("incidents", "notices", "INC-1")
    assert answer.returncode == 0, answer.stderr
    assert "hung" in answer.stdout
    assert "sending" in answer.stdout


@pytest.mark.slow
def test_after_kill_9_everything_is_as_it_was_and_nothing_is_sent_twice(stack: ExitStack, tmp_path: Path) -> None:
    good = hook(stack)
    settings, port = receivers(tmp_path, good=good), servers.free_port()
    hub = start_hub(stack, tmp_path, settings, port=port)
    silence = hub.command("silence", "add", "node=n2", "--for", "1h", "--reason", "new fan")
    assert silence.returncode == 0, silence.stderr
    push_xid(hub, 79)
    push_xid(hub, 48, "GPU-2", node="n2")
    await_that(lambda: good.notices() == ["INC-1/good/opened/1"])
    assert hub.command("incidents", "assign", "INC-1", "ada").returncode == 0
    hub.server.send_signal(signal.SIGKILL)
    hub.server.wait()
    again = start_hub(stack, tmp_path, settings, port=port)
    push_xid(again, 95, "GPU-3", node="n3")
    await_that(lambda: "INC-3/good/opened/1" in good.notices())
    assert good.notices() == ["INC-1/good/opened/1", "INC-3/good/opened/1"]
    kept = {incident["id"]: incident for incident in again.incidents()}
    assert (kept["INC-1"]["state"], kept["INC-1"]["assignee"]) == ("acknowledged", "ada")
    assert kept["INC-2"]["silenced_by"]["reason"] == "new fan"
    assert again.command("incidents", "resolve", "INC-1", "--why", "swapped").returncode == 0
    await_that(lambda: "INC-1/good/resolved/1" in good.notices())


@pytest.mark.slow
def test_receivers_change_while_the_hub_runs_and_a_broken_file_changes_nothing(
    stack: ExitStack, tmp_path: Path
) -> None:
    first, second = hook(stack), hook(stack)
    hub = start_hub(stack, tmp_path, receivers(tmp_path, first=first))
    push_xid(hub, 79)
    await_that(lambda: first.notices() == ["INC-1/first/opened/1"])
    (tmp_path / "notify.toml").write_text("[[receivers]]\nname = 3\n")
    await_that(lambda: "watchkeeper_notify_routes_broken 1" in metrics(hub))
    receivers(tmp_path, first=first, second=second)
    push_xid(hub, 48, "GPU-2", node="n2")
    await_that(lambda: "INC-2/second/opened/1" in second.notices())
    assert first.notices() == ["INC-1/first/opened/1", "INC-2/first/opened/1"]


@pytest.mark.slow
def test_a_silence_stands_on_the_timeline_of_what_it_silences(stack: ExitStack, tmp_path: Path) -> None:
    hub = start_hub(stack, tmp_path, "")
    push_xid(hub, 79)
    await_that(hub.incidents)
    time_of = lambda: json.dumps(hub.get("/api/incidents/INC-1")["timeline"])  # noqa: E731
    made = await_that(
        lambda: hub.command("incidents", "silence", "INC-1", "--for", "1h", "--reason", "new riser").stdout
    )
    await_that(lambda: "new riser" in time_of())
    assert hub.command("silence", "end", made.partition(":")[0]).returncode == 0
    assert re.search('Silence of [^"]+ ended', time_of())


@pytest.mark.slow
def test_the_report_and_the_digest_tell_the_whole_story(stack: ExitStack, tmp_path: Path) -> None:
    hub = start_hub(stack, tmp_path, "")
    push_xid(hub, 79)
    await_that(lambda: hub.get("/api/incidents/INC-1")["diagnosis"])
    hub.command("incidents", "note", "INC-1", "called the vendor")
    text = hub.command("incidents", "report", "INC-1").stdout
    assert text.startswith("# INC-1: ")
    assert "| called the vendor |" in text
    assert "gpu-fell-off-bus" in text
    digest = hub.command("incidents", "digest").stdout
    assert "gpu_fell_off_bus" in digest


@pytest.mark.servers
def test_a_real_alertmanager_hears_from_us_and_we_from_it(stack: ExitStack, tmp_path: Path) -> None:
    hub_port = servers.free_port()
    url = start_alertmanager(stack, tmp_path, hub_port)
    hub = start_hub(stack, tmp_path, f'via = "alertmanager"\nalertmanager_urls = ["{url}"]', port=hub_port)
    push_xid(hub, 79)
    ours = await_that(lambda: alerts_at(url))
    assert [(alert["labels"]["cause"], alert["labels"]["watchkeeper_incident"]) for alert in ours] == [
        ("gpu_fell_off_bus", "INC-1")
    ]
    summary = {"summary": "their rule says so"}
    theirs = {"alertname": "TheirXid", "severity": "critical", "Hostname": "n9", "UUID": "GPU-9", "xid": "48"}
    post(f"{url}/api/v2/alerts", [{"labels": theirs, "annotations": summary}])
    opened = await_that(lambda: [incident for incident in hub.incidents() if incident["cause"] == "ecc_uncorrectable"])
    assert opened[0]["place"]["node"] == "n9"
    assert len(hub.incidents()) == 2, "what we sent came back to us"
    made = hub.command("silence", "add", "node=n1", "--for", "1h", "--reason", "new riser")
    assert "alertmanager:" in made.stdout, made.stderr
    await_that(lambda: [alert for alert in alerts_at(url) if alert["status"]["state"] == "suppressed"])
    over = [
        {
            "labels": theirs,
            "annotations": summary,
            "endsAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1)),
        }
    ]
    post(f"{url}/api/v2/alerts", over)
    await_that(lambda: "Resolved: their rule says so" in json.dumps(hub.get("/api/incidents/" + opened[0]["id"])))


@pytest.mark.servers
def test_silences_that_alertmanager_keeps_are_shown_as_its_own_and_ended_there(
    stack: ExitStack, tmp_path: Path
) -> None:
    hub_port = servers.free_port()
    url = start_alertmanager(stack, tmp_path, hub_port)
    hub = start_hub(stack, tmp_path, f'via = "alertmanager"\nalertmanager_urls = ["{url}"]', port=hub_port)
    push_xid(hub, 79)
    await_that(hub.incidents)
    theirs = {"createdBy": "grace", "comment": "made with amtool", "startsAt": stamp(-5), "endsAt": stamp(3600)}
    post(f"{url}/api/v2/silences", theirs | {"matchers": [{"name": "node", "value": "n1", "isRegex": False}]})
    shown = await_that(lambda: hub.get("/api/incidents/INC-1")["silenced_by"])
    assert (shown["author"], shown["reason"]) == ("grace (in alertmanager)", "made with amtool")
    made = hub.command("silence", "add", "incident=INC-1", "--for", "1h", "--reason", "new riser")
    assert made.returncode == 0, made.stderr
    listed = hub.command("silence", "list").stdout
    assert "made with amtool" in listed
    assert "new riser" in listed
    assert listed.count("alertmanager ") >= 2
    assert hub.command("silence", "end", made.stdout.partition(": ")[0]).returncode == 0
    timeline = lambda: json.dumps(hub.get("/api/incidents/INC-1")["timeline"])  # noqa: E731
    await_that(lambda: re.search('Silence of [^"]+ ended', timeline()))


@pytest.mark.servers
def test_a_hub_killed_while_alertmanager_is_down_loses_nothing_and_tells_nobody_twice(
    stack: ExitStack, tmp_path: Path
) -> None:
    port, people = servers.free_port(), hook(stack)
    notify = f'via = "alertmanager"\nalertmanager_urls = ["http://127.0.0.1:{port}"]'
    with ExitStack() as first:
        start_alertmanager(first, tmp_path, port=port, receiver=people.url)
        hub = start_hub(stack, tmp_path, notify)
        push_xid(hub, 79, "GPU-1", node="n1")
        await_that(lambda: told(people) == ["INC-1 firing"])
    push_xid(hub, 79, "GPU-2", node="n2")
    await_that(lambda: len(hub.incidents()) == 2)
    hub.command("incidents", "resolve", "INC-1", "--why", "replaced")
    hub.server.kill()
    hub.server.wait()
    again = start_hub(stack, tmp_path, notify)
    assert [incident["id"] for incident in again.incidents()] == ["INC-2"]
    start_alertmanager(stack, tmp_path, port=port, receiver=people.url)
    await_that(lambda: len(told(people)) == 3, within_seconds=90)
    assert sorted(told(people)) == ["INC-1 firing", "INC-1 resolved", "INC-2 firing"]


def told(people: Hook) -> list[str]:
    """What Alertmanager's own receiver heard: each incident with its state, in the order of the calls."""
    alerts = [alert for body in people.got for alert in body["alerts"]]
    return [f"{alert['labels']['watchkeeper_incident']} {alert['status']}" for alert in alerts]


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def start_alertmanager(
    stack: ExitStack, folder: Path, hub_port: int = 0, *, port: int | None = None, receiver: str | None = None
) -> str:
    """A real one; it tells the hub, or another receiver, each incident as a group of its own."""
    port = port or servers.free_port()
    told_at = receiver or f"http://127.0.0.1:{hub_port}/api/alertmanager"
    (folder / "am.yml").write_text(
        "route: {receiver: hub, group_wait: 1s, group_interval: 1s, repeat_interval: 1h, group_by: [...]}\n"
        f"receivers: [{{name: hub, webhook_configs: [{{url: '{told_at}'}}]}}]\n"
    )
    url = f"http://127.0.0.1:{port}"
    line = [
        servers.require("alertmanager"),
        f"--config.file={folder}/am.yml",
        f"--storage.path={folder}/am",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    stack.enter_context(servers.running(line, ready_url=f"{url}/-/ready", log=folder / f"am-{time.monotonic_ns()}.log"))
    return url


def alerts_at(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=60) as answer:
        alerts: list[dict[str, Any]] = json.loads(answer.read())
    return alerts
