"""A stand-in for a Kubernetes API server: lists in pages, watches with bookmarks, and every way to break them.

Objects are plain dictionaries; each change gets the next resource version. What a real server does at will (ending
watches, forgetting versions, restarting) is done here when a test or a bench says so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from watchkeeper.net import access, listening
from watchkeeper.readers.clusters import kubeconfig

NODES, PODS, QUOTAS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/resourcequotas"
JOBS, EVENTS = "/apis/batch/v1/jobs", "/api/v1/events"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
Raw = dict[str, Any]


@dataclass(slots=True)
class ApiServer:
    """Paths in `refused` answer with that status; requests with another token than `token` answer 401."""

    token: str = "let-me-in"
    refused: dict[str, int] = field(default_factory=dict)
    objects: dict[str, dict[tuple[str, str], Raw]] = field(default_factory=dict)
    version: int = 100
    lists: dict[str, int] = field(default_factory=dict)
    watches: dict[str, int] = field(default_factory=dict)
    port: int = 0
    page_bytes: Callable[[bytes], bytes] = bytes
    _changes: list[tuple[int, str, str, Raw]] = field(default_factory=list)
    _forgotten: int = 0
    _writers: dict[asyncio.StreamWriter, str] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _talks: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reached(self, token: str | None = None) -> kubeconfig.ApiServer:
        return kubeconfig.ApiServer(self.url, access.Access(credentials=token or self.token), "test")

    def put(self, path: str, raw: Raw) -> None:
        """Create or change an object, and tell those who watch."""
        key = (raw["metadata"].get("namespace", ""), raw["metadata"]["name"])
        objects = self.objects.setdefault(path, {})
        kind = "MODIFIED" if key in objects else "ADDED"
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        objects[key] = raw
        self._change(path, kind, raw)

    def delete(self, path: str, name: str, namespace: str = "") -> None:
        raw = self.objects[path].pop((namespace, name))
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self._change(path, "DELETED", raw)

    def fill(self, path: str, raws: list[Raw]) -> None:
        """Objects that were there before anybody watched."""
        objects = self.objects.setdefault(path, {})
        for raw in raws:
            raw["metadata"]["resourceVersion"] = str(self.version)
            objects[raw["metadata"].get("namespace", ""), raw["metadata"]["name"]] = raw

    def bookmark(self, path: str) -> None:
        self.version += 1
        about = {"metadata": {"resourceVersion": str(self.version)}}
        self._tell(path, json.dumps({"type": "BOOKMARK", "object": about}).encode() + b"\n")

    def send(self, path: str, line: bytes) -> None:
        """Anything at all to those who watch."""
        self._tell(path, line)

    def forget(self) -> None:
        """As etcd after a compaction: no watch may go on from an older version."""
        self._forgotten = self.version
        self._changes.clear()

    def expire(self, path: str) -> None:
        """410 inside the running watches, as API servers since 1.19 say it."""
        self.forget()
        self._tell(path, _line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}))
        self.end(path)

    def end(self, path: str | None = None, *, abort: bool = False) -> None:
        """End watches: cleanly, or as a cable does."""
        for writer, watched in list(self._writers.items()):
            if path in (None, watched):
                if abort:
                    writer.transport.abort()
                else:
                    with suppress(RuntimeError):
                        writer.write(b"0\r\n\r\n")
                        writer.close()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        await listening.close_server(self._server)
        self.end(abort=True)
        for talk, writer in self._talks.items():
            talk.cancel()
            writer.close()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()

    def _change(self, path: str, kind: str, raw: Raw) -> None:
        self._changes.append((self.version, path, kind, raw))
        self._tell(path, _line(kind, raw))

    def _tell(self, path: str, line: bytes) -> None:
        for writer, watched in list(self._writers.items()):
            if watched == path and not writer.is_closing():
                writer.write(_chunk(line))

    # Not a coroutine: one that is cancelled before its first step would leave its connection open.
    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._server is not None
        if not self._server.is_serving():
            writer.close()
            return
        talk = asyncio.create_task(self._talk(reader, writer))
        self._talks[talk] = writer
        talk.add_done_callback(lambda done: self._talks.pop(done, None))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                target, headers = line.decode().split()[1], {}
                while text := (await reader.readline()).decode().strip():
                    name, _, value = text.partition(": ")
                    headers[name.lower()] = value
                parts = urlsplit(target)
                parameters = {name: values[0] for name, values in parse_qs(parts.query).items()}
                status = self._refusal(parts.path, headers, parameters)
                if status:
                    _answer(writer, b"{}", status=status)
                elif "watch" in parameters:
                    await self._watch(writer, parts.path, parameters)
                    return
                else:
                    _answer(writer, self._list(parts.path, parameters))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._writers.pop(writer, None)
            writer.close()

    def _refusal(self, path: str, headers: Mapping[str, str], parameters: Mapping[str, str]) -> int:
        if headers.get("authorization") != f"Bearer {self.token}":
            return 401
        if path in self.refused:
            return self.refused[path]
        return 410 if "watch" in parameters and int(parameters["resourceVersion"]) < self._forgotten else 0

    def _list(self, path: str, parameters: Mapping[str, str]) -> bytes:
        start = int(parameters.get("continue", 0))
        if not start:
            self.lists[path] = self.lists.get(path, 0) + 1
        limit = int(parameters.get("limit", 500))
        items = list(self.objects.get(path, {}).values())
        about = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            about["continue"] = str(start + limit)
        return self.page_bytes(json.dumps({"metadata": about, "items": items[start : start + limit]}).encode())

    async def _watch(self, writer: asyncio.StreamWriter, path: str, parameters: Mapping[str, str]) -> None:
        self.watches[path] = self.watches.get(path, 0) + 1
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for version, changed, kind, raw in self._changes:
            if changed == path and version > int(parameters["resourceVersion"]):
                writer.write(_chunk(_line(kind, raw)))
        self._writers[writer] = path
        await writer.wait_closed()


@asynccontextmanager
async def serving(server: ApiServer | None = None) -> AsyncIterator[ApiServer]:
    server = server or ApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def node(name: str, *, gpus: int | None = 8, labels: Mapping[str, str] | None = None, **spec: Any) -> Raw:
    count = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    status = {
        "capacity": {"cpu": "96", **count},
        "allocatable": {"cpu": "95", **count},
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        "addresses": [{"type": "InternalIP", "address": f"10.0.0.{len(name)}"}, {"type": "Hostname", "address": name}],
    }
    return {"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec, "status": status}


def pod(name: str, *, gpus: int = 0, node: str = "", namespace: str = "research", **status: Any) -> Raw:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    spec = {"containers": [{"name": "main", "resources": limits}], **({"nodeName": node} if node else {})}
    about = {"name": name, "namespace": namespace, "creationTimestamp": "2026-11-15T05:00:00Z"}
    return {"metadata": about, "spec": spec, "status": {"phase": "Running" if node else "Pending", **status}}


def waiting(message: str, reason: str = "Unschedulable") -> Raw:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"conditions": [condition]}


def _line(kind: str, raw: Raw) -> bytes:
    return json.dumps({"type": kind, "object": raw}).encode() + b"\n"


def _chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def _answer(writer: asyncio.StreamWriter, body: bytes, *, status: int = 200) -> None:
    writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
