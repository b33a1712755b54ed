"""A storm of alerts and events over HTTP: the time until each is an incident on disk, and the memory of the hub.

Events are pushed to a real hub as by agents, and alerts as by Alertmanager's webhook, spread over time. The hub
responds after it has committed the incident, so the response time is the time to the incident. During the storm a rack
of 512 GPUs loses power, and another rack after it: each time 64 nodes are down, which must be one incident.
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
CONNECTIONS = 8
RACK_NODES = 64
RACK_IN_STORM, RACK_AFTER = "r98", "r99"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=10_000, help="number of events")
    parser.add_argument("--alerts", type=int, default=10_000, help="number of alerts")
    parser.add_argument("--seconds", type=float, default=60.0, help="time over which they are spread")
    parser.add_argument("--batch", type=int, default=10, help="events or alerts in one push")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of the events and alerts, 8 GPUs each")


def measure(options: argparse.Namespace) -> dict[str, float]:
    port = servers.free_port()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hub.toml").write_text(f'[hub]\nport = {port}\ndata = "kept"\n{inventory(folder)}')
        line = [*WATCHKEEPER, "hub", "--config", f"{folder}/hub.toml"]
        ready = f"http://127.0.0.1:{port}/-/ready"
        with servers.running(line, ready_url=ready, log=Path(folder) / "log") as server:
            memory_before, cpu_before = resident_mib(server.pid), cpu_seconds(server.pid)
            events = pushes(options.events, options, event_body)
            alerts = pushes(options.alerts, options, alert_body)
            with ThreadPoolExecutor(1) as pool:
                in_storm = pool.submit(measure_rack_seconds, port, RACK_IN_STORM, delay_seconds=options.seconds / 2)
                times = send_storm(port, {"/api/events": events, "/api/alertmanager": alerts}, seconds=options.seconds)
                racks = {RACK_IN_STORM: in_storm.result()}
            memory_after, cpu_after = resident_mib(server.pid), cpu_seconds(server.pid)
            racks[RACK_AFTER] = measure_rack_seconds(port, RACK_AFTER)
            return {
                "events": options.events,
                "alerts": options.alerts,
                "seconds": options.seconds,
                "event_p50_seconds": percentile(times["/api/events"], 0.5),
                "event_p99_seconds": percentile(times["/api/events"], 0.99),
                "alert_p99_seconds": percentile(times["/api/alertmanager"], 0.99),
                "hub_cpu_share": round((cpu_after - cpu_before) / options.seconds, 2),
                "rack_in_storm_to_one_incident_seconds": racks[RACK_IN_STORM],
                "rack_to_one_incident_seconds": racks[RACK_AFTER],
                "memory_before_mib": round(memory_before, 1),
                "memory_after_mib": round(memory_after, 1),
            }


def inventory(folder: str) -> str:
    """An inventory of two racks without targets, from which the hub knows the nodes of each rack."""
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
    """Events of varying nodes, GPUs and Xids: a tenth are new conditions, the rest repetitions."""
    now = datetime.now(UTC).isoformat()
    return [
        {
            "id": f"main/node-{number * 7 % nodes}/boot/kmsg/{number}",
            "kind": "xid",
            "code": CODES[number % len(CODES)],
            "place": {
                "cluster": "main",
                "node": f"node-{number * 7 % nodes}",
                "gpu": f"GPU-{number * 7 % nodes}-{number % 8}",
            },
            "at": now,
            "text": f"NVRM: Xid (PCI:0000:5d:00): {CODES[number % len(CODES)]}",
        }
        for number in numbers
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
    return webhook([{**alert_labels, "severity": "warning", "cause": "thermal_throttle"} for alert_labels in labels])


def webhook(labels: Sequence[dict[str, str]]) -> dict[str, Any]:
    started = datetime.now(UTC).isoformat()
    return {
        "version": "4",
        "alerts": [
            {"status": "firing", "labels": alert_labels, "annotations": {}, "startsAt": started}
            for alert_labels in labels
        ],
    }


def send_storm(port: int, bodies_by_path: dict[str, list[bytes]], *, seconds: float) -> dict[str, list[float]]:
    """Send all bodies at a constant rate over several connections per path; returns the response times."""
    times: dict[str, list[float]] = {path: [] for path in bodies_by_path}
    started_at = time.monotonic()

    def send(path: str, own_bodies: Sequence[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for at, body in enumerate(own_bodies):
            time.sleep(max(0.0, started_at + seconds * at / len(own_bodies) - time.monotonic()))
            sent_at = time.monotonic()
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise RuntimeError(f"{path} returned {response.status}")
            times[path].append(time.monotonic() - sent_at)
        connection.close()

    threads = [
        threading.Thread(target=send, args=(path, bodies[connection_index::CONNECTIONS]))
        for path, bodies in bodies_by_path.items()
        for connection_index in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(len(times[path]) != len(bodies) for path, bodies in bodies_by_path.items()):
        raise RuntimeError("some pushes failed")
    return times


def measure_rack_seconds(port: int, rack: str, *, delay_seconds: float = 0.0) -> float:
    """Seconds from the first alert of a rack without power to one incident of the rack."""
    time.sleep(delay_seconds)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    started_at = time.monotonic()
    for at in range(RACK_NODES):
        labels = {"alertname": "NodeDown", "cluster": "main", "Hostname": f"{rack}-{at}", "severity": "critical"}
        body = json.dumps(webhook([{**labels, "cause": "node_down"}])).encode()
        connection.request("POST", "/api/alertmanager", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
    while time.monotonic() - started_at < 60:
        connection.request("GET", "/api/incidents?limit=1000")
        incidents = json.loads(connection.getresponse().read())["incidents"]
        down = [incident for incident in incidents if incident["cause"] == "node_down" and rack in incident["title"]]
        if len(down) == 1 and down[0]["place"]["domain"] == f"rack={rack}":
            return round(time.monotonic() - started_at, 2)
        time.sleep(0.05)
    raise RuntimeError(f"{len(down)} incidents for one rack")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process, which unlike times do not depend on other load of the machine."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def percentile(times: Sequence[float], share: float) -> float:
    sorted_times = sorted(times)
    return round(sorted_times[min(len(sorted_times) - 1, int(share * len(sorted_times)))], 3)
