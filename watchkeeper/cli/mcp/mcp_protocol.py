"""The Model Context Protocol over standard input and output: requests in, answers out, one line each.

Two eras are spoken, because clients of both are about: the handshake of 2024-11-05 to 2025-11-25 (`initialize`), and
2026-07-28, where each request names its version and `server/discover` says what there is
(modelcontextprotocol.io/specification). Only what a server of tools and resources needs is here; `mcp_tools` has the
tools. The official package would cost 30 packages and a second of start; tests/cli/mcp holds this against its client.
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
META = "io.modelcontextprotocol/"
# A pasted log is the longest thing that is sent here.
MOST_LINE_BYTES = 8 * 1024 * 1024
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602
UNSUPPORTED_VERSION = -32022
NO_RESOURCE = -32002
CHECKS: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool: what it is for, its arguments as JSON Schema properties, and the function that answers with text."""

    name: str
    words: str
    call: Callable[[dict[str, Any]], str]
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    changes: bool = False

    def plain(self) -> dict[str, Any]:
        schema = {"type": "object", "properties": dict(self.arguments), "required": list(self.needed)}
        hints = {"readOnlyHint": not self.changes, "destructiveHint": False, "openWorldHint": False}
        return {"name": self.name, "description": self.words, "inputSchema": schema, "annotations": hints}

    def problem_with(self, given: Mapping[str, Any]) -> str | None:
        """What is wrong with the arguments, in words that a model can act on."""
        for name in self.needed:
            if name not in given:
                return f"`{name}` is missing; {self.name} takes {', '.join(self.arguments)}"
        for name, value in given.items():
            if name not in self.arguments:
                return f"`{name}` is unknown; {self.name} takes {', '.join(self.arguments) or 'no arguments'}"
            kind = str(self.arguments[name].get("type"))
            if not isinstance(value, CHECKS[kind]) or (kind != "boolean" and isinstance(value, bool)):
                return f"`{name}` must be of type {kind}"
        return None


@dataclass(frozen=True, slots=True)
class McpResource:
    """A text that a client may read; `read` is called when it does."""

    uri: str
    name: str
    words: str
    read: Callable[[], str]
    media: str = "text/markdown"

    def plain(self) -> dict[str, Any]:
        return {"uri": self.uri, "name": self.name, "description": self.words, "mimeType": self.media}


class ProtocolError(Exception):
    """A request that the protocol answers with an error."""

    def __init__(self, code: int, problem: str, content: Any = None) -> None:
        super().__init__(problem)
        self.code = code
        self.content = content


class McpServer:
    """Answers messages; it keeps nothing between them, so that both eras are served alike."""

    def __init__(
        self, tools: Sequence[McpTool], resources: Sequence[McpResource], *, version: str, instructions: str
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._resources = {resource.uri: resource for resource in resources}
        self._server = {"name": "watchkeeper", "title": "Watchkeeper", "version": version}
        self._instructions = instructions
        self._methods: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "ping": lambda _: {},
            "tools/list": lambda _: {"tools": [tool.plain() for tool in self._tools.values()]},
            "tools/call": self._call,
            "resources/list": lambda _: {"resources": [one.plain() for one in self._resources.values()]},
            "resources/templates/list": lambda _: {"resourceTemplates": []},
            "resources/read": self._read,
        }

    def answer(self, line: bytes) -> dict[str, Any] | None:
        """The answer to one line; None for a notification, which has none."""
        id: Any = None
        try:
            message = _message(line)
            id = message.get("id")
            if id is None:
                return None
            return {"jsonrpc": "2.0", "id": id, "result": self._result(message)}
        except ProtocolError as error:
            said: dict[str, Any] = {"code": error.code, "message": str(error)}
            if error.content is not None:
                said["data"] = error.content
            return {"jsonrpc": "2.0", "id": id, "error": said}

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        method, asked = message.get("method"), message.get("params") or {}
        if not isinstance(method, str) or not isinstance(asked, dict):
            raise ProtocolError(INVALID_REQUEST, "a request has a method and, if any, params as an object")
        is_modern = _is_modern(asked)
        found = self._methods.get(method)
        if found is None or (is_modern and method in ("initialize", "ping")):
            raise ProtocolError(NO_METHOD, f"there is no method {method[:60]} here")
        result = found(asked)
        if not is_modern:
            return result
        more: dict[str, Any] = {"resultType": "complete", "_meta": {f"{META}serverInfo": self._server}}
        # Tools do not change while we run, but a runbook may be edited: nothing is to be kept.
        return result | more | ({} if method == "tools/call" else {"ttlMs": 0, "cacheScope": "private"})

    def _initialize(self, asked: dict[str, Any]) -> dict[str, Any]:
        wanted = asked.get("protocolVersion")
        version = wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": self._server,
            "instructions": self._instructions,
        }

    def _discover(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "supportedVersions": [*MODERN_VERSIONS, *HANDSHAKE_VERSIONS],
            "capabilities": {"tools": {}, "resources": {}},
            "instructions": self._instructions,
        }

    def _call(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A tool's answer; what goes wrong inside one is an answer too, so that the model reads why."""
        tool, given = self._tools.get(str(asked.get("name"))), asked.get("arguments") or {}
        if tool is None or not isinstance(given, dict):
            raise ProtocolError(
                INVALID_PARAMS, f"there is no tool {str(asked.get('name'))[:60]}; tools/list names them"
            )
        problem = tool.problem_with(given)
        try:
            text = tool.call(given) if problem is None else problem
        except WatchkeeperError as error:
            problem = text = str(error)
        except Exception:
            # A fault of ours in one tool must not take the others from the assistant.
            log.exception("A tool failed", extra=fields(tool=tool.name))
            problem = text = f"{tool.name} failed; the log of `watchkeeper mcp` says why"
        return {"content": [{"type": "text", "text": text}], "isError": problem is not None}

    def _read(self, asked: dict[str, Any]) -> dict[str, Any]:
        found = self._resources.get(str(asked.get("uri")))
        if found is None:
            # The modern era retired the code of its own for this.
            code = INVALID_PARAMS if _is_modern(asked) else NO_RESOURCE
            raise ProtocolError(code, f"there is no resource {str(asked.get('uri'))[:100]}")
        return {"contents": [{"uri": found.uri, "mimeType": found.media, "text": found.read()}]}


def _message(line: bytes) -> dict[str, Any]:
    if len(line) > MOST_LINE_BYTES:
        raise ProtocolError(INVALID_REQUEST, f"a message has at most {MOST_LINE_BYTES:,} bytes, this one has more")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(PARSE_ERROR, f"not JSON: {error}") from error
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, "a message is one JSON-RPC 2.0 object")
    return message


def _is_modern(asked: Mapping[str, Any]) -> bool:
    """Whether a request names its own version; Refused where that is none of ours, or it says no capabilities."""
    meta = asked.get("_meta")
    version = meta.get(f"{META}protocolVersion") if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or version is None:
        return False
    if version not in MODERN_VERSIONS:
        known = {"supported": [*MODERN_VERSIONS, *HANDSHAKE_VERSIONS], "requested": str(version)}
        raise ProtocolError(
            UNSUPPORTED_VERSION, f"version {str(version)[:20]} of the protocol is not spoken here", known
        )
    if not isinstance(meta.get(f"{META}clientCapabilities"), dict):
        raise ProtocolError(INVALID_PARAMS, f"_meta lacks {META}clientCapabilities")
    return True


def serve(server: McpServer, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer line by line until the client closes its end."""
    while line := source.readline(MOST_LINE_BYTES + 1):
        if not line.strip():
            continue
        answer = server.answer(line)
        while len(line) > MOST_LINE_BYTES and not line.endswith(b"\n"):
            # The rest of a line that is too long is no message of its own.
            line = source.readline(MOST_LINE_BYTES + 1)
        if answer is not None:
            sink.write(json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
            sink.flush()
