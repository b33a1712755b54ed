"""The Model Context Protocol over standard input and output: one JSON-RPC message per line.

Supports both generations of the protocol: the handshake of 2024-11-05 to 2025-11-25 (`initialize`), and 2026-07-28,
where each request names its version and `server/discover` lists capabilities (modelcontextprotocol.io/specification).
Only tools and resources are implemented; `mcp_tools` has the tools. The official package would add 30 packages and one
second of start-up; tests/cli/mcp tests this module with its client.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit.logs import fields

log = logging.getLogger(__name__)

HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN_VERSIONS = ("2026-07-28",)
SUPPORTED_VERSIONS = [*MODERN_VERSIONS, *HANDSHAKE_VERSIONS]
META = "io.modelcontextprotocol/"
# The longest message is a pasted log.
MAX_LINE_BYTES = 8 * 1024 * 1024
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
UNSUPPORTED_VERSION = -32022
NO_RESOURCE = -32002
CHECKS: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool: description, arguments as JSON Schema properties, and the function that returns the answer as text."""

    name: str
    description: str
    call: Callable[[dict[str, Any]], str]
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    changes_fleet: bool = False

    def as_json(self) -> dict[str, Any]:
        schema = {"type": "object", "properties": dict(self.arguments), "required": list(self.required)}
        hints = {"readOnlyHint": not self.changes_fleet, "destructiveHint": False, "openWorldHint": False}
        return {"name": self.name, "description": self.description, "inputSchema": schema, "annotations": hints}

    def find_problem(self, arguments: Mapping[str, Any]) -> str | None:
        """The first problem of the arguments, as a text that a model can act on; None if there is none."""
        for name in self.required:
            if name not in arguments:
                return f"`{name}` is missing; arguments of {self.name}: {', '.join(self.arguments)}"
        for name, value in arguments.items():
            if name not in self.arguments:
                return f"unknown argument `{name}`; arguments of {self.name}: {', '.join(self.arguments) or 'none'}"
            kind = str(self.arguments[name].get("type"))
            if not isinstance(value, CHECKS[kind]) or (kind != "boolean" and isinstance(value, bool)):
                return f"`{name}` must be of type {kind}"
        return None


@dataclass(frozen=True, slots=True)
class McpResource:
    uri: str
    name: str
    description: str
    read: Callable[[], str]
    mime_type: str = "text/markdown"

    def as_json(self) -> dict[str, Any]:
        return {"uri": self.uri, "name": self.name, "description": self.description, "mimeType": self.mime_type}


class ProtocolError(Exception):
    def __init__(self, code: int, problem: str, content: Any = None) -> None:
        super().__init__(problem)
        self.code = code
        self.content = content


class McpServer:
    """Answers messages; it is stateless, so it serves both generations of the protocol alike."""

    def __init__(
        self, tools: Sequence[McpTool], resources: Sequence[McpResource], *, version: str, instructions: str
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._resources = {resource.uri: resource for resource in resources}
        self._server = {"name": "watchkeeper", "title": "Watchkeeper", "version": version}
        self._about = {"capabilities": {"tools": {}, "resources": {}}, "instructions": instructions}
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "server/discover": lambda _: {"supportedVersions": SUPPORTED_VERSIONS, **self._about},
            "ping": lambda _: {},
            "tools/list": lambda _: {"tools": [tool.as_json() for tool in self._tools.values()]},
            "tools/call": self._call_tool,
            "resources/list": lambda _: {"resources": [resource.as_json() for resource in self._resources.values()]},
            "resources/templates/list": lambda _: {"resourceTemplates": []},
            "resources/read": self._read_resource,
        }

    def answer(self, line: bytes) -> dict[str, Any] | None:
        """The response to one line; None for a notification, which has no response."""
        id: Any = None
        try:
            message = _parse_message(line)
            id = message.get("id")
            if id is None:
                return None
            return {"jsonrpc": "2.0", "id": id, "result": self._handle_request(message)}
        except ProtocolError as error:
            error_json: dict[str, Any] = {"code": error.code, "message": str(error)}
            if error.content is not None:
                error_json["data"] = error.content
            return {"jsonrpc": "2.0", "id": id, "error": error_json}

    def _handle_request(self, message: dict[str, Any]) -> dict[str, Any]:
        method, params = message.get("method"), message.get("params") or {}
        if not isinstance(method, str) or not isinstance(params, dict):
            raise ProtocolError(INVALID_REQUEST, "a request needs a method, and params must be an object")
        is_modern = _is_modern(params)
        handler = self._methods.get(method)
        if handler is None or (is_modern and method in ("initialize", "ping")):
            raise ProtocolError(NO_METHOD, f"unknown method {method[:60]}")
        result = handler(params)
        if not is_modern:
            return result
        metadata: dict[str, Any] = {"resultType": "complete", "_meta": {f"{META}serverInfo": self._server}}
        # Tools do not change at run time, but a runbook may be edited: clients must not cache.
        return result | metadata | ({} if method == "tools/call" else {"ttlMs": 0, "cacheScope": "private"})

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        requested = params.get("protocolVersion")
        version = requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
        return {"protocolVersion": version, "serverInfo": self._server, **self._about}

    def _call_tool(self, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool; an error of a tool is a result too, so that the model reads the reason."""
        tool, arguments = self._tools.get(str(params.get("name"))), params.get("arguments") or {}
        if tool is None or not isinstance(arguments, dict):
            name = str(params.get("name"))[:60]
            raise ProtocolError(INVALID_PARAMS, f"unknown tool {name}; list tools with tools/list")
        problem = tool.find_problem(arguments)
        try:
            text = tool.call(arguments) if problem is None else problem
        except WatchkeeperError as error:
            problem = text = str(error)
        except Exception:
            # A bug in one tool must not stop the others.
            log.exception("tool failed", extra=fields(tool=tool.name))
            problem = text = f"{tool.name} failed; the log of `watchkeeper mcp` has the reason"
        return {"content": [{"type": "text", "text": text}], "isError": problem is not None}

    def _read_resource(self, params: dict[str, Any]) -> dict[str, Any]:
        resource = self._resources.get(str(params.get("uri")))
        if resource is None:
            # The modern protocol has no code of its own for this.
            code = INVALID_PARAMS if _is_modern(params) else NO_RESOURCE
            raise ProtocolError(code, f"unknown resource {str(params.get('uri'))[:100]}")
        return {"contents": [{"uri": resource.uri, "mimeType": resource.mime_type, "text": resource.read()}]}


def _parse_message(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(INVALID_REQUEST, f"the message is longer than the limit of {MAX_LINE_BYTES:,} bytes")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(PARSE_ERROR, f"not JSON: {error}") from error
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, "a message is one JSON-RPC 2.0 object")
    return message


def _is_modern(params: Mapping[str, Any]) -> bool:
    """Whether a request names its version; ProtocolError if the version is unsupported or capabilities are missing."""
    meta = params.get("_meta")
    version = meta.get(f"{META}protocolVersion") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or version is None:
        return False
    if version not in MODERN_VERSIONS:
        versions = {"supported": SUPPORTED_VERSIONS, "requested": str(version)}
        raise ProtocolError(UNSUPPORTED_VERSION, f"unsupported protocol version {str(version)[:20]}", versions)
    if not isinstance(meta.get(f"{META}clientCapabilities"), dict):
        raise ProtocolError(INVALID_PARAMS, f"_meta lacks {META}clientCapabilities")
    return True


def serve(server: McpServer, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer line by line until the client closes its end."""
    while line := source.readline(MAX_LINE_BYTES + 1):
        if not line.strip():
            continue
        answer = server.answer(line)
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            # Skip the rest of a line that is too long.
            line = source.readline(MAX_LINE_BYTES + 1)
        if answer is not None:
            sink.write(json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
            sink.flush()
