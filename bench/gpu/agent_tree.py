"""Measure the whole agent as started by a user: its processes, its page over HTTP, and the time of events to a hub.

`agent_bench` calls `bench_tree`. The hub is a stand-in that stores the time of each event. Without click, the agent is
started without its command line.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The same as `watchkeeper agent` after parsing its options.
WITHOUT_CLICK = """
import asyncio, sys
from pathlib import Path
from watchkeeper.agent import agent, agent_server
from watchkeeper.kit import clock
hub, spool, kmsg, port, interval = sys.argv[1:]
settings = agent.AgentSettings(hub, Path(spool), kmsg=Path(kmsg), interval_seconds=float(interval),
    listen=agent_server.Listen("127.0.0.1", int(port)))
asyncio.run(agent.run(settings, clock.ScaledClock(), asyncio.Event()))
"""
MEMORY = {"Rss": "rss", "Pss": "pss", "Private_Dirty": "own", "Anonymous": "anonymous"}
TIMEOUT_SECONDS = 60.0


class HubStandIn:
    """Acknowledges every push, and stores the time of each event."""

    def __init__(self) -> None:
        self.events: list[tuple[float, dict[str, Any]]] = []
        methods = {
            "do_POST": self._receive_events,
            "do_GET": lambda request: _respond(request, 404),
            "log_message": _ignore_log,
        }
        handler_class = type(
            "Answer", (BaseHTTPRequestHandler,), {"protocol_version": "HTTP/1.1", **_as_methods(methods)}
        )
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_class)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _receive_events(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if request.path == "/api/events":
            now = time.time()
            self.events += [(now, event) for event in json.loads(body)]
        _respond(request, 200 if request.path in ("/api/events", "/api/nodes") else 404)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _as_methods(answers: dict[str, Callable[..., None]]) -> dict[str, Callable[..., None]]:
    """Wrap bound methods in functions that a class can bind to its instances."""
    return {name: lambda *given, answer=answer: answer(*given) for name, answer in answers.items()}


def _respond(request: BaseHTTPRequestHandler, status: int) -> None:
    body = b'{"ok":true}'
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _ignore_log(*_: Any) -> None:
    pass


@dataclass
class RunningAgent:
    pid: int
    port: int
    hub: HubStandIn
    entry: str
    connection: http.client.HTTPConnection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)

    def page(self) -> bytes:
        self.connection.request("GET", "/metrics")
        return self.connection.getresponse().read()


@contextmanager
def running_agent(interval: float, kmsg: str) -> Iterator[RunningAgent]:
    hub = HubStandIn()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        has_click = importlib.util.find_spec("click") is not None
        listen = ["--listen", f"127.0.0.1:{port}", "--interval", f"{interval:g}", "--kmsg", kmsg]
        with_click = ["-m", "watchkeeper.cli.main", "agent", "--hub", hub.url, "--spool", folder, *listen]
        without = ["-c", WITHOUT_CLICK, hub.url, folder, kmsg, str(port), f"{interval:g}"]
        arguments = with_click if has_click else without
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        stderr_path = Path(folder) / "stderr"
        with stderr_path.open("wb") as stderr:
            child = subprocess.Popen([sys.executable, *arguments], env=environment, stderr=stderr)
        try:
            agent = RunningAgent(child.pid, port, hub, "watchkeeper agent" if has_click else "agent.run, without click")
            if not _wait_until(lambda: _has_gpus(agent), child):
                raise SystemExit(f"the agent has no GPU metrics: {stderr_path.read_text(errors='replace')[-2000:]}")
            yield agent
            agent.connection.close()
        finally:
            child.terminate()
            child.wait(TIMEOUT_SECONDS)
            hub.close()


def _has_gpus(agent: RunningAgent) -> bool:
    try:
        return b"DCGM_FI_DEV_GPU_TEMP{" in agent.page()
    except OSError:
        agent.connection.close()
        return False


def _wait_until(condition: Callable[[], bool], child: subprocess.Popen[bytes]) -> bool:
    """Wait for a condition; False if the child exits first, or after the timeout."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if child.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def processes_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    pids = [pid]
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                pids += processes_of(int(child))
    return pids


def memory_of(pid: int) -> dict[str, float]:
    """MiB of one process by kind; `own` would be freed if it exited."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {line.partition(":")[0]: line.partition(":")[2].split()[0] for line in lines[1:]}
    return {label: round(int(kib[name]) / 1024, 1) for name, label in MEMORY.items()}


def mappings_of(pid: int, count: int = 6) -> dict[str, float]:
    """The largest mappings in resident memory, in MiB."""
    sizes: dict[str, int] = {}
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        columns = line.split(maxsplit=5)
        if "-" in columns[0] and ":" not in columns[0]:
            name = Path(columns[5]).name if len(columns) > 5 else "anonymous"
        elif columns[0] == "Rss:":
            sizes[name] = sizes.get(name, 0) + int(columns[1])
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])
    rest = sum(kib for _, kib in largest[count:])
    return {name: round(kib / 1024, 1) for name, kib in [*largest[:count], ("rest", rest)]}


def cpu_of(pids: list[int]) -> float:
    """CPU seconds of all threads of these processes, including their exited children."""
    seconds = 0.0
    for pid in pids:
        with suppress(FileNotFoundError):
            tasks = Path(f"/proc/{pid}/task").iterdir()
            seconds += sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
            ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
            seconds += sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
    return seconds


def bench_tree(seconds: float, kmsg: str = "/dev/kmsg", xid_program: str | None = None) -> dict[str, Any]:
    """Memory, CPU at one reading and one scrape per second, scrape time over HTTP, and the time of a provoked Xid."""
    with running_agent(1.0, kmsg) as agent:
        time.sleep(5)
        # Programs that the agent runs, such as systemctl, count in its CPU time but not in its memory.
        pids = [pid for pid in processes_of(agent.pid) if _role(pid) is not None]
        cpu_before, start = cpu_of(pids), time.monotonic()
        while time.monotonic() - start < seconds:
            agent.page()
            time.sleep(1.0)
        elapsed = time.monotonic() - start
        cpu = 100 * (cpu_of(pids) - cpu_before) / elapsed
        memory = {name: memory_of(pid) for pid in pids if (name := _role(pid)) is not None}
        total = {kind: round(sum(part[kind] for part in memory.values()), 1) for kind in MEMORY.values()}
        numbers: dict[str, Any] = {
            "entry": agent.entry,
            "cpu_percent": round(cpu, 3),
            "memory_mib": memory | {"all": total},
            "mapped_mib": {name: mappings_of(pid) for pid in pids if (name := _role(pid)) is not None},
            "scrape_over_http_ms": _measure_scrapes(agent),
            "page_bytes": len(agent.page()),
        }
        if xid_program is not None:
            numbers["xid"] = _provoke_xid(agent, xid_program)
        return numbers


def _role(pid: int) -> str | None:
    """`agent` or `reader`; None for other processes, and for processes that have exited."""
    with suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(b"reader_child" in word for word in arguments):
            return "reader"
        if b"agent" in arguments or any(b"watchkeeper" in word for word in arguments):
            return "agent"
    return None


def _measure_scrapes(agent: RunningAgent, count: int = 500) -> dict[str, float]:
    durations = []
    for _ in range(count):
        start = time.perf_counter()
        agent.page()
        durations.append(time.perf_counter() - start)
        time.sleep(0.005)
    durations.sort()
    return {"p50": round(1e3 * statistics.median(durations), 3), "p99": round(1e3 * durations[int(count * 0.99)], 3)}


def _provoke_xid(agent: RunningAgent, program: str) -> dict[str, Any]:
    """The time from the launch of a kernel with an illegal access to the event at the hub."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True, bufsize=1) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        if job.stdout.readline().strip() != "ready":
            return {"skipped": "needs cupy and a GPU"}
        job.stdin.write("\n")
        job.stdin.close()
        launched_at = float(job.stdout.readline())
        deadline = time.time() + 10
        while not (xids := _xids(agent, launched_at)) and time.time() < deadline:
            time.sleep(0.002)
        job.wait()
    time.sleep(3)
    return {"launch_to_hub_ms": xids[0]["after_ms"] if xids else None, "events": _xids(agent, launched_at)[:5]}


def _xids(agent: RunningAgent, launched_at: float) -> list[dict[str, Any]]:
    return [
        {"code": event["code"], "id": event["id"], "after_ms": round((at - launched_at) * 1e3, 1)}
        for at, event in agent.hub.events
        if event["kind"] == "xid" and at >= launched_at
    ]
