"""The whole agent as a user starts it, measured from outside: its processes, its page over HTTP, its way to a hub.

`agent_bench` calls `bench_tree`. The hub is a stand-in of the standard library that notes when each event came.
Where click is not installed, the agent is started without its command line.
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
# What `watchkeeper agent` does once its options are read.
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
PATIENCE_SECONDS = 60.0


class HubStandIn:
    """Answers every push at once and remembers when each event came."""

    def __init__(self) -> None:
        self.events: list[tuple[float, dict[str, Any]]] = []
        answers = {"do_POST": self._take, "do_GET": lambda request: _say(request, 404), "log_message": _silent}
        kind = type("Answer", (BaseHTTPRequestHandler,), {"protocol_version": "HTTP/1.1", **_methods(answers)})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if request.path == "/api/events":
            now = time.time()
            self.events += [(now, event) for event in json.loads(body)]
        _say(request, 200 if request.path in ("/api/events", "/api/nodes") else 404)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _methods(answers: dict[str, Callable[..., None]]) -> dict[str, Callable[..., None]]:
    """Plain functions, which a class binds to its instances."""
    return {name: lambda *given, answer=answer: answer(*given) for name, answer in answers.items()}


def _say(request: BaseHTTPRequestHandler, status: int) -> None:
    body = b'{"ok":true}'
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def _silent(*_: Any) -> None:
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
        said = Path(folder) / "stderr"
        with said.open("wb") as stderr:
            child = subprocess.Popen([sys.executable, *arguments], env=environment, stderr=stderr)
        try:
            agent = RunningAgent(child.pid, port, hub, "watchkeeper agent" if has_click else "agent.run, without click")
            if not _wait(lambda: _has_gpus(agent), child):
                raise SystemExit(f"the agent shows no GPU: {said.read_text(errors='replace')[-2000:]}")
            yield agent
            agent.connection.close()
        finally:
            child.terminate()
            child.wait(PATIENCE_SECONDS)
            hub.close()


def _has_gpus(agent: RunningAgent) -> bool:
    try:
        return b"DCGM_FI_DEV_GPU_TEMP{" in agent.page()
    except OSError:
        agent.connection.close()
        return False


def _wait(condition: Callable[[], bool], child: subprocess.Popen[bytes]) -> bool:
    """True once the condition holds; False if the child ends before, or takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if child.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def processes_of(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    with suppress(FileNotFoundError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += processes_of(int(child))
    return found


def memory_of(pid: int) -> dict[str, float]:
    """MiB of one process; `own` is what would be freed if it ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {line.partition(":")[0]: line.partition(":")[2].split()[0] for line in lines[1:]}
    return {short: round(int(kib[name]) / 1024, 1) for name, short in MEMORY.items()}


def mappings_of(pid: int, count: int = 6) -> dict[str, float]:
    """The largest parts of the resident memory by what is mapped there, in MiB."""
    sizes: dict[str, int] = {}
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if "-" in words[0] and ":" not in words[0]:
            name = Path(words[5]).name if len(words) > 5 else "anonymous"
        elif words[0] == "Rss:":
            sizes[name] = sizes.get(name, 0) + int(words[1])
    largest = sorted(sizes.items(), key=lambda one: -one[1])
    rest = sum(kib for _, kib in largest[count:])
    return {name: round(kib / 1024, 1) for name, kib in [*largest[:count], ("rest", rest)]}


def cpu_of(pids: list[int]) -> float:
    """Seconds on a CPU: all threads of these processes, and what they have started and waited for meanwhile."""
    seconds = 0.0
    for pid in pids:
        with suppress(FileNotFoundError):
            tasks = Path(f"/proc/{pid}/task").iterdir()
            seconds += sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
            ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
            seconds += sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")
    return seconds


def bench_tree(seconds: float, kmsg: str = "/dev/kmsg", xid_program: str | None = None) -> dict[str, Any]:
    """Memory, CPU at one reading and one scrape a second, scrapes over HTTP, and the way of a provoked Xid."""
    with running_agent(1.0, kmsg) as agent:
        time.sleep(5)
        # What the agent asks now and then, such as systemctl, is counted in its CPU time and is no part of its memory.
        pids = [pid for pid in processes_of(agent.pid) if _name(pid) is not None]
        used, start = cpu_of(pids), time.monotonic()
        while time.monotonic() - start < seconds:
            agent.page()
            time.sleep(1.0)
        elapsed = time.monotonic() - start
        cpu = 100 * (cpu_of(pids) - used) / elapsed
        memory = {name: memory_of(pid) for pid in pids if (name := _name(pid)) is not None}
        total = {kind: round(sum(part[kind] for part in memory.values()), 1) for kind in MEMORY.values()}
        found: dict[str, Any] = {
            "entry": agent.entry,
            "cpu_percent": round(cpu, 3),
            "memory_mib": memory | {"all": total},
            "mapped_mib": {name: mappings_of(pid) for pid in pids if (name := _name(pid)) is not None},
            "scrape_over_http_ms": _scrapes(agent),
            "page_bytes": len(agent.page()),
        }
        if xid_program is not None:
            found["xid"] = _provoke(agent, xid_program)
        return found


def _name(pid: int) -> str | None:
    """`agent` or `reader`; None for any other program, or one that has ended."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if any(b"reader_child" in word for word in words):
            return "reader"
        if b"agent" in words or any(b"watchkeeper" in word for word in words):
            return "agent"
    return None


def _scrapes(agent: RunningAgent, count: int = 500) -> dict[str, float]:
    took = []
    for _ in range(count):
        start = time.perf_counter()
        agent.page()
        took.append(time.perf_counter() - start)
        time.sleep(0.005)
    took.sort()
    return {"p50": round(1e3 * statistics.median(took), 3), "p99": round(1e3 * took[int(count * 0.99)], 3)}


def _provoke(agent: RunningAgent, program: str) -> dict[str, Any]:
    """From the launch of a kernel that touches memory it does not own to the event at the hub."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True, bufsize=1) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        if job.stdout.readline().strip() != "ready":
            return {"skipped": "cupy or a GPU for it is missing"}
        job.stdin.write("\n")
        job.stdin.close()
        launched = float(job.stdout.readline())
        deadline = time.time() + 10
        while not (found := _xids(agent, launched)) and time.time() < deadline:
            time.sleep(0.002)
        job.wait()
    time.sleep(3)
    return {"launch_to_hub_ms": found[0]["after_ms"] if found else None, "events": _xids(agent, launched)[:5]}


def _xids(agent: RunningAgent, launched: float) -> list[dict[str, Any]]:
    return [
        {"code": event["code"], "id": event["id"], "after_ms": round((at - launched) * 1e3, 1)}
        for at, event in agent.hub.events
        if event["kind"] == "xid" and at >= launched
    ]
