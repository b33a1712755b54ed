"""A storm of alerts and events over HTTP: how long until each is an incident on disk, and how much memory it takes.

A real hub; events come as agents push them, alerts as Alertmanager's webhook brings them, spread over the time. A push
is answered after its incident is committed, so the time to the answer is the time to the incident. In the middle of
the storm a rack of 512 GPUs loses power, and after it another: 64 nodes are down, and each must be one incident.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.idle import resident_mib
from tests import servers
from tests.support.running_product import WATCHKEEPER

CODES = (79, 48, 94, 31, 13, 63, 74, 119)
LINES = 8
RACK_NODES = 64
RACK_IN_STORM, RACK_AFTER = "r98", "r99"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=10_000, help="events in all")
    parser.add_argument("--alerts", type=int, default=10_000, help="alerts in all")
    parser.add_argument("--seconds", type=float, default=60.0, help="time they are spread over")
    parser.add_argument("--batch", type=int, default=10, help="events or alerts in one push")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes they are about, 8 GPUs each")


def measure(options: argparse.Namespace) -> dict[str, float]:
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hub.toml").write_text(f'[hub]\nport = {port}\ndata = "kept"\n{inventory(folder)}')
        line = [*WATCHKEEPER, "hub", "--config", f"{folder}/hub.toml"]
        ready = f"http://127.0.0.1:{port}/-/ready"
        with servers.running(line, ready_url=ready, log=Path(folder) / "log") as server:
            before, idle = resident_mib(server.pid), cpu_seconds(server.pid)
            events = pushes(options.events, options, event_body)
            alerts = pushes(options.alerts, options, alert_body)
            with ThreadPoolExecutor(1) as beside:
                in_storm = beside.submit(rack_seconds, port, RACK_IN_STORM, begin_after=options.seconds / 2)
                times = storm(port, {"/api/events": events, "/api/alertmanager": alerts}, seconds=options.seconds)
                racks = {RACK_IN_STORM: in_storm.result()}
            after, busy = resident_mib(server.pid), cpu_seconds(server.pid)
            racks[RACK_AFTER] = rack_seconds(port, RACK_AFTER)
            return {
                "events": options.events,
                "alerts": options.alerts,
                "seconds": options.seconds,
                "event_p50_seconds": percentile(times["/api/events"], 0.5),
                "event_p99_seconds": percentile(times["/api/events"], 0.99),
                "alert_p99_seconds": percentile(times["/api/alertmanager"], 0.99),
                "hub_cpu_share": round((busy - idle) / options.seconds, 2),
                "rack_in_storm_to_one_incident_seconds": racks[RACK_IN_STORM],
                "rack_to_one_incident_seconds": racks[RACK_AFTER],
                "memory_before_mib": round(before, 1),
                "memory_after_mib": round(after, 1),
            }


def inventory(folder: str) -> str:
    """Two racks of nodes that nobody scrapes: enough for the hub to know that they belong together."""
    meta = "__meta_watchkeeper_"
    groups = [
        {"targets": [], "labels": {f"{meta}cluster": "main", f"{meta}domain_rack": rack, f"{meta}node": f"{rack}-{at}"}}
        for rack in (RACK_IN_STORM, RACK_AFTER)
        for at in range(RACK_NODES)
    ]
    (Path(folder) / "sd.json").write_text(json.dumps(groups))
    return '\n[fleet]\nsd_files = ["sd.json"]\n'


def pushes(count: int, options: argparse.Namespace, body: Callable[[Sequence[int], int], Any]) -> list[bytes]:
    sizes = range(0, count, options.batch)
    return [json.dumps(body(range(at, min(at + options.batch, count)), options.nodes)).encode() for at in sizes]


def event_body(numbers: Sequence[int], nodes: int) -> list[dict[str, Any]]:
    """Any node, any of its GPUs, any of a few codes: a tenth of them new conditions, the rest repetitions."""
    now = datetime.now(UTC).isoformat()
    return [
        {
            "id": f"main/node-{at * 7 % nodes}/boot/kmsg/{at}",
            "kind": "xid",
            "code": CODES[at % len(CODES)],
            "place": {"cluster": "main", "node": f"node-{at * 7 % nodes}", "gpu": f"GPU-{at * 7 % nodes}-{at % 8}"},
            "at": now,
            "text": f"NVRM: Xid (PCI:0000:5d:00): {CODES[at % len(CODES)]}",
        }
        for at in numbers
    ]


def alert_body(numbers: Sequence[int], nodes: int) -> dict[str, Any]:
    labels = [
        {
            "alertname": f"Rule{at % 40}",
            "Hostname": f"node-{at * 11 % nodes}",
            "UUID": f"GPU-{at * 11 % nodes}-{at % 8}",
        }
        for at in numbers
    ]
    return webhook([{**one, "severity": "warning", "cause": "thermal_throttle"} for one in labels])


def webhook(labels: Sequence[dict[str, str]]) -> dict[str, Any]:
    started = datetime.now(UTC).isoformat()
    return {
        "version": "4",
        "alerts": [{"status": "firing", "labels": one, "annotations": {}, "startsAt": started} for one in labels],
    }


def storm(port: int, waiting: dict[str, list[bytes]], *, seconds: float) -> dict[str, list[float]]:
    """Send everything at an even pace, from several connections for each path; the time of each answer."""
    times: dict[str, list[float]] = {path: [] for path in waiting}
    began = time.monotonic()

    def send(path: str, mine: Sequence[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for at, body in enumerate(mine):
            time.sleep(max(0.0, began + seconds * at / len(mine) - time.monotonic()))
            started = time.monotonic()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{path} answered {answer.status}")
            times[path].append(time.monotonic() - started)
        connection.close()

    threads = [
        threading.Thread(target=send, args=(path, bodies[line::LINES]))
        for path, bodies in waiting.items()
        for line in range(LINES)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(len(times[path]) != len(bodies) for path, bodies in waiting.items()):
        raise RuntimeError("some pushes were not taken")
    return times


def rack_seconds(port: int, rack: str, *, begin_after: float = 0.0) -> float:
    """From the first alert of a dead rack to one incident for all of it."""
    time.sleep(begin_after)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.monotonic()
    for at in range(RACK_NODES):
        labels = {"alertname": "NodeDown", "cluster": "main", "Hostname": f"{rack}-{at}", "severity": "critical"}
        body = json.dumps(webhook([{**labels, "cause": "node_down"}])).encode()
        connection.request("POST", "/api/alertmanager", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
    while time.monotonic() - began < 60:
        connection.request("GET", "/api/incidents?limit=1000")
        found = json.loads(connection.getresponse().read())["incidents"]
        down = [one for one in found if one["cause"] == "node_down" and rack in one["title"]]
        if len(down) == 1 and down[0]["place"]["domain"] == f"rack={rack}":
            return round(time.monotonic() - began, 2)
        time.sleep(0.05)
    raise RuntimeError(f"{len(down)} incidents for one rack")


def cpu_seconds(pid: int) -> float:
    """What the hub itself has used: unlike the times, it says the same on a machine that others use as well."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def percentile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
